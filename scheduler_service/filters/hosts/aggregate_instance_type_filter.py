"""AggregateInstanceTypeFilter."""

from __future__ import annotations

from collections.abc import Mapping, Set

from scheduler_service import specops
from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import Key
from scheduler_service.filters.hosts.base import HostFilter
from scheduler_service.filters.support.extra_specs import AGGREGATE_SCOPE
from scheduler_service.model import Request
from scheduler_service.settings import Settings

FORCE = 'force_metadata_check'
_ANY, _MAY_MISS, _MUST_MISS = '*', '~', '!'
_SENTINELS = frozenset((_ANY, _MAY_MISS, _MUST_MISS))
_OR = '<or>'


class AggregateInstanceTypeFilter(HostFilter):
    """Matches extra specs and aggregate metadata, with sentinels.

    In an extra spec ``*`` means any value, ``~`` that the key may be absent,
    ``!`` that it must be; ``<or>`` joins alternatives. Specs of other scopes
    are checked where the metadata has the key. Where an aggregate has
    ``force_metadata_check`` equal to ``True``, every key of the metadata is
    checked against the flavor too, and may use sentinels and ``<or>``;
    ``availability_zone`` and ``filter_tenant_id*`` are exempt.
    """

    once = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Judge each distinct set of aggregates once."""
        specs = tuple(request.flavor.extra_specs.items())
        return table.by_aggregates(
            lambda ids: _failing(table.split_metadata(ids), specs) is None,
        )

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return all extra specs."""
        return tuple(request.flavor.extra_specs.items())

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Name the key, and both sides of it."""
        metadata = table.split_metadata(table.coded['aggregate_set'].at(row))
        specs = request.flavor.extra_specs
        key = _failing(metadata, tuple(specs.items()))
        told = ','.join(sorted(metadata.get(key or '', ()))) or 'nothing'
        asked = specs.get(
            key or '', specs.get(f'{AGGREGATE_SCOPE}:{key}', 'nothing')
        )
        return f'{key}: the flavor says {asked}, aggregate metadata {told}'


def _failing(
    metadata: Mapping[str, Set[str]], specs: tuple[tuple[str, str], ...]
) -> str | None:
    """Return the first key on which the two do not agree."""
    forced = 'True' in metadata.get(FORCE, ())
    own: dict[str, set[str]] = {}
    optional: set[str] = set()
    for key, asked in specs:
        scope, colon, name = key.partition(':')
        if colon and scope == AGGREGATE_SCOPE:
            key = name
        elif colon and (forced or _ANY not in _alternatives(asked)):
            # Nobody has to have heard of a key of another scope, but for
            # one that says in so many words that it has to be there.
            optional.add(key)
        own.setdefault(key, set()).add(asked)
    if forced:
        failing = _failing_back(metadata, own)
        if failing is not None:
            return failing
    for key, values in own.items():
        there = metadata.get(key)
        if there is None and key in optional:
            continue
        if not all(_check({one}, there, forced) for one in sorted(values)):
            return key
    return None


def _failing_back(
    metadata: Mapping[str, Set[str]], own: Mapping[str, Set[str]]
) -> str | None:
    """Return the first key of the metadata that the flavor does not meet."""
    for key, values in metadata.items():
        exempt = key in (FORCE, 'availability_zone') or key.startswith(
            'filter_tenant_id'
        )
        if not exempt and not _check(values, own.get(key), True):
            return key
    return None


def _check(asked: Set[str], there: Set[str] | None, expand: bool) -> bool:
    """Whether what is there (None: absent) is what is asked.

    :param expand: whether sentinels and ``<or>`` have a meaning there too
    """
    wanted = [one for value in asked for one in _alternatives(value)]
    if _MUST_MISS in wanted:
        return there is None and not {_ANY, _MAY_MISS} & set(wanted)
    if there is None:
        return _MAY_MISS in wanted
    if _ANY in wanted:
        return True
    values = set(there)
    if expand:
        values = {one for value in there for one in _alternatives(value)}
        if _ANY in values:
            return True
    plain = [one for one in wanted if one not in _SENTINELS]
    return any(
        specops.match(value, one) or (expand and specops.match(one, value))
        for value in sorted(values)
        for one in plain
    )


def _alternatives(value: str) -> list[str]:
    """Return the alternatives of a value: of ``<or>``, or itself alone."""
    words = value.split()
    if words and words[0] == _OR:
        return words[1::2]
    return [value]
