"""The host filter AggregateInstanceExtraSpecsFilter."""

from __future__ import annotations

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
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings

Specs = tuple[tuple[str, str], ...]


class AggregateInstanceExtraSpecsFilter(HostFilter):
    """Passes hosts whose aggregates satisfy every extra spec of the flavor.

    Extra specs without a scope count, and those with the scope
    ``aggregate_instance_extra_specs:``; other scopes are ignored. The key has
    to be in the metadata of one of the host's aggregates, and one of its
    values, which are split at commas, has to match. A value that is no number
    does not match where numbers are compared. Requirements use the operators
    of extra specs.
    """

    once = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Evaluate each distinct set of aggregates once."""
        specs = _aggregate_specs(request)
        if not specs:
            return None
        return table.by_aggregate_ids(
            lambda ids: _failing_spec(table, ids, specs) is None,
        )

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the extra specs that count, None for none."""
        return _aggregate_specs(request) or None

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Name the first extra spec that fails, and the values there are."""
        ids = table.coded['aggregate_set'].at(row)
        failing = _failing_spec(table, ids, _aggregate_specs(request))
        if failing is None:
            return 'does not pass'
        key, requirement = failing
        values = table.split_metadata(ids).get(key)
        if values is None:
            return (
                f'the flavor requires {key}={requirement}, no aggregate of '
                'the host has the metadata key'
            )
        try:
            _any_matches(values, requirement)
        except specops.NotComparableError as fault:
            return f'{UNREADABLE}the flavor requires {key}={requirement}, ' + (
                f'aggregate metadata: {fault}'
            )
        return (
            f'the flavor requires {key}={requirement}, aggregate metadata '
            f'has {key}={",".join(sorted(values))}'
        )


def _aggregate_specs(request: Request) -> Specs:
    """Return (key, requirement) of the specs that count, without scope."""
    specs = []
    for key, requirement in request.flavor.extra_specs.items():
        scope, colon, name = key.partition(':')
        if not colon:
            specs.append((key, requirement))
        elif scope == specops.AGGREGATE_SCOPE:
            specs.append((name, requirement))
    return tuple(specs)


def _failing_spec(
    table: HostTable, aggregate_ids: frozenset[int], specs: Specs
) -> tuple[str, str] | None:
    """Return the first spec that the aggregates do not satisfy."""
    metadata = table.split_metadata(aggregate_ids)
    for key, requirement in specs:
        values = metadata.get(key)
        try:
            with reading(spec_path(key), REQUIREMENT, requirement):
                if values is None or not _any_matches(values, requirement):
                    return key, requirement
        except specops.NotComparableError:
            return key, requirement
    return None


def _any_matches(values: frozenset[str], requirement: str) -> bool:
    """Say whether one of the values matches.

    :raises NotComparableError: none matches, and one is no number where
        numbers are compared
    :raises ValueError: the requirement is not valid
    """
    error: specops.NotComparableError | None = None
    for value in sorted(values):
        try:
            if specops.match(value, requirement):
                return True
        except specops.NotComparableError as caught:
            error = caught
    if error is not None:
        raise error
    return False
