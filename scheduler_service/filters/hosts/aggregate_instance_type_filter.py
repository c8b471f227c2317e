"""The host filter AggregateInstanceTypeFilter."""

from __future__ import annotations

from collections.abc import Mapping, Set

from scheduler_service import specops
from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import Key
from scheduler_service.filters.base import HostFilter
from scheduler_service.filters.unreadable import (
    REQUIREMENT,
    UNREADABLE,
    reading,
    spec_path,
    where_comparable,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class AggregateInstanceTypeFilter(HostFilter):
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

    once = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Evaluate each distinct set of aggregates once."""
        specs = tuple(request.flavor.extra_specs.items())
        return table.by_aggregate_ids(
            where_comparable(
                lambda ids: (
                    failing_key(table.split_metadata(ids), specs) is None
                )
            )
        )

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return all extra specs: metadata may require their absence."""
        return tuple(request.flavor.extra_specs.items())

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Name the key, and what flavor and metadata have under it."""
        metadata = table.split_metadata(table.coded['aggregate_set'].at(row))
        specs = request.flavor.extra_specs
        try:
            key = failing_key(metadata, tuple(specs.items())) or ''
        except specops.NotComparableError as fault:
            return f'{UNREADABLE}aggregate metadata: {fault}'
        values = ','.join(sorted(metadata.get(key, ()))) or 'no value'
        scoped = specs.get(f'{specops.AGGREGATE_SCOPE}:{key}', 'no value')
        return (
            f'{key}: the flavor has {specs.get(key, scoped)}, aggregate '
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
    :raises InvalidRequest: a requirement of the flavor is not valid
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
        for requirement in sorted(requirements):
            with reading(spec_path(key), REQUIREMENT, requirement):
                if not _satisfies({requirement}, values, forced):
                    return key
    return None


def _failing_metadata_key(
    metadata: Mapping[str, Set[str]], specs: Mapping[str, Set[str]]
) -> str | None:
    """Return the first metadata key that the flavor does not satisfy."""
    for key, requirements in metadata.items():
        exempt = key in _EXEMPT_KEYS or key.startswith(_EXEMPT_PREFIX)
        if not exempt and not _satisfies(requirements, specs.get(key), True):
            return key
    return None


def _satisfies(
    requirements: Set[str], values: Set[str] | None, both_ways: bool
) -> bool:
    """Say whether any value satisfies any of the requirements.

    :param values: None: the key is absent
    :param both_ways: whether values, too, may be sentinels, alternatives
        and expressions
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
    return _any_matches(
        sorted(values),
        [text for text in alternatives if text not in _SENTINELS],
        both_ways,
    )


def _any_matches(
    values: list[str], requirements: list[str], both_ways: bool
) -> bool:
    fault: specops.NotComparableError | None = None
    for value in values:
        for requirement in requirements:
            try:
                if specops.match(value, requirement) or (
                    both_ways and _matches_metadata(requirement, value)
                ):
                    return True
            except specops.NotComparableError as caught:
                fault = caught
    if fault is not None:
        raise fault
    return False


def _matches_metadata(text: str, metadata: str) -> bool:
    """Say whether a text of the flavor is what the metadata requires.

    :raises NotComparableError: it is no number where numbers are compared,
        or the metadata is not a valid requirement
    """
    try:
        return specops.match(text, metadata)
    except ValueError as fault:
        raise specops.NotComparableError(str(fault)) from None


def _alternatives(text: str) -> list[str]:
    """Return the alternatives of ``<or> a <or> b``, or the text alone."""
    words = text.split()
    if words and words[0] == _OR:
        return words[1::2]
    return [text]
