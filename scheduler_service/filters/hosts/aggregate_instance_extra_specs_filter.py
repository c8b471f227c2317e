"""AggregateInstanceExtraSpecsFilter."""

from __future__ import annotations

from scheduler_service import specops
from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import Key
from scheduler_service.filters.hosts.base import HostFilter
from scheduler_service.filters.support.extra_specs import AGGREGATE_SCOPE
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class AggregateInstanceExtraSpecsFilter(HostFilter):
    """Passes hosts whose aggregates satisfy every extra spec of the flavor.

    Specs without a scope, and those scoped
    ``aggregate_instance_extra_specs:``; others are ignored. A key must be in
    the metadata of one of the host's aggregates, and one of its values
    (split at commas) must match; operators are those of extra specs.
    """

    once = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Judge each distinct set of aggregates once."""
        specs = own_specs(request)
        if not specs:
            return None
        return table.by_aggregates(
            lambda ids: _failing(table, ids, specs) is None,
        )

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the specs that count."""
        return own_specs(request) or None

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Name the first spec that is not satisfied, and what there is."""
        ids = table.coded['aggregate_set'].at(row)
        failing = _failing(table, ids, own_specs(request))
        if failing is None:
            return 'does not pass'
        key, asked = failing
        values = table.split_metadata(ids).get(key)
        if values is None:
            return (
                f'the flavor asks {key}={asked}, no aggregate metadata has '
                'the key'
            )
        told = ','.join(sorted(values))
        return (
            f'aggregate metadata has {key}={told}, the flavor asks '
            f'{key}={asked}'
        )


def own_specs(request: Request) -> tuple[tuple[str, str], ...]:
    """Return (key, requirement) of the specs that are ours, scope removed."""
    found = []
    for key, value in request.flavor.extra_specs.items():
        scope, colon, name = key.partition(':')
        if not colon:
            found.append((key, value))
        elif scope == AGGREGATE_SCOPE:
            found.append((name, value))
    return tuple(found)


def _failing(
    table: HostTable,
    ids: frozenset[int],
    specs: tuple[tuple[str, str], ...],
) -> tuple[str, str] | None:
    """Return the first spec that the aggregates do not satisfy."""
    metadata = table.split_metadata(ids)
    for key, asked in specs:
        values = metadata.get(key)
        if values is None or not _any_matches(values, asked):
            return key, asked
    return None


def _any_matches(values: set[str], asked: str) -> bool:
    """Whether one of the values matches; a fault only where none does."""
    fault: ValueError | None = None
    for value in sorted(values):
        try:
            if specops.match(value, asked):
                return True
        except ValueError as error:
            fault = error
    if fault is not None:
        raise fault
    return False
