"""The host filter AggregateInstanceTypeFilter."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Set

from scheduler_service import specops
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import Key
from scheduler_service.filters.base import REQUIREMENT, UNREADABLE
from scheduler_service.filters.hosts.aggregate_filter import (
    AggregateFilter,
    Metadata,
    any_matches,
)
from scheduler_service.model import Request
from scheduler_service.model.problems import shown
from scheduler_service.model.requirements.specs import reading, spec_path
from scheduler_service.settings import Settings


class AggregateInstanceTypeFilter(AggregateFilter):
    """Matches extra specs and aggregate metadata, with sentinels.

    In an extra spec ``*`` means any value, ``~`` that the key may be absent
    and ``!`` that it must be absent; ``<or>`` joins alternatives. Specs of
    other scopes than ``aggregate_instance_extra_specs:`` are compared where
    the metadata has the key. Where an aggregate has the metadata
    ``force_metadata_check`` equal to ``True``, every metadata key is compared
    with the flavor, too, and may use sentinels and ``<or>``;
    ``availability_zone`` and keys that start with ``filter_tenant_id`` are
    exempt.
    """

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        # All extra specs: metadata may require their absence.
        return tuple(request.flavor.extra_specs.items())

    def mismatch(
        self, metadata: Metadata, key: tuple[tuple[str, str], ...]
    ) -> str:
        try:
            name = failing_key(metadata, key)
        except specops.NotComparableError as fault:
            return f'{UNREADABLE}aggregate metadata: {fault}'
        if name is None:
            return ''
        specs = dict(key)
        values = ','.join(sorted(metadata.get(name, ()))) or 'no value'
        scoped = specs.get(f'{specops.AGGREGATE_SCOPE}:{name}', 'no value')
        return (
            f'{name}: the flavor has {specs.get(name, scoped)}, aggregate '
            f'metadata has {values}'
        )


FORCE_KEY = 'force_metadata_check'
_ANY, _MAY_BE_ABSENT, _MUST_BE_ABSENT = '*', '~', '!'
_SENTINELS = frozenset((_ANY, _MAY_BE_ABSENT, _MUST_BE_ABSENT))
_OR = '<or>'
# Metadata that other filters read: no flavor has to repeat it.
_EXEMPT_KEYS = frozenset((FORCE_KEY, 'availability_zone'))
_EXEMPT_PREFIX = 'filter_tenant_id'


def failing_key(
    metadata: Mapping[str, Set[str]], specs: tuple[tuple[str, str], ...]
) -> str | None:
    """Return the first key on which flavor and metadata disagree, or None.

    :param metadata: of the aggregates of a host, values split at commas
    :param specs: extra specs of the flavor, (key, requirement)
    :raises NotComparableError: metadata is no number where numbers are
        compared, or not a valid requirement
    :raises InvalidRequest: an extra spec is not a valid requirement
    """
    forced = 'True' in metadata.get(FORCE_KEY, ())
    required: dict[str, set[str]] = {}
    optional: set[str] = set()
    for key, requirement in specs:
        scope, colon, name = key.partition(':')
        if colon and scope == specops.AGGREGATE_SCOPE:
            key = name
        elif colon and (forced or _ANY not in _alternatives(requirement)):
            # Extra specs of other scopes are optional, unless they require the
            # key to be present.
            optional.add(key)
        required.setdefault(key, set()).add(requirement)
    if forced:
        failing = _failing_metadata_key(metadata, required)
        if failing is not None:
            return failing
    for key, requirements in required.items():
        values = metadata.get(key)
        if values is None and key in optional:
            continue
        matches = functools.partial(_matches, key, forced)
        for requirement in sorted(requirements):
            if not _satisfies({requirement}, values, forced, matches):
                return key
    return None


def _failing_metadata_key(
    metadata: Mapping[str, Set[str]], specs: Mapping[str, Set[str]]
) -> str | None:
    """Return the first metadata key that the flavor does not satisfy."""
    for key, requirements in metadata.items():
        if key in _EXEMPT_KEYS or key.startswith(_EXEMPT_PREFIX):
            continue

        def matches(spec: str, metadata: str, key: str = key) -> bool:
            return _matches(key, True, metadata, spec)

        if not _satisfies(requirements, specs.get(key), True, matches):
            return key
    return None


def _satisfies(
    requirements: Set[str],
    values: Set[str] | None,
    both_ways: bool,
    matches: Callable[[str, str], bool],
) -> bool:
    """Return whether any value satisfies any of the requirements.

    :param values: None: the key is absent
    :param both_ways: whether values, too, may be sentinels and alternatives
    :param matches: says whether a value satisfies a requirement
    """
    alternatives = [
        alternative
        for requirement in requirements
        for alternative in _alternatives(requirement)
    ]
    if _MUST_BE_ABSENT in alternatives:
        return values is None and not {_ANY, _MAY_BE_ABSENT} & set(
            alternatives
        )
    if values is None:
        return _MAY_BE_ABSENT in alternatives
    if _ANY in alternatives:
        return True
    if both_ways:
        values = {part for value in values for part in _alternatives(value)}
        if _ANY in values:
            return True
    plain = [text for text in alternatives if text not in _SENTINELS]
    return any_matches(itertools.product(sorted(values), plain), matches)


def _matches(key: str, forced: bool, metadata: str, spec: str) -> bool:
    """Return whether metadata and an extra spec match.

    :param forced: whether the metadata, too, may be a requirement
    :raises NotComparableError: metadata is no number where numbers are
        compared, or not a valid requirement
    :raises InvalidRequest: the extra spec is not a valid requirement
    """
    with reading(spec_path(key), REQUIREMENT, spec):
        if specops.match(metadata, spec):
            return True
    if not forced:
        return False
    try:
        return specops.match(spec, metadata)
    except specops.NotComparableError:
        raise
    except ValueError:
        raise specops.NotComparableError(
            f'{key}: expected {REQUIREMENT}, got {shown(metadata)}'
        ) from None


def _alternatives(text: str) -> list[str]:
    """Return the alternatives of ``<or> a <or> b``, or the text alone."""
    words = text.split()
    if words and words[0] == _OR:
        return words[1::2]
    return [text]
