"""The host filter AggregateInstanceExtraSpecsFilter."""

from __future__ import annotations

from scheduler_service import specops
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import Key
from scheduler_service.filters.aggregates import AggregateFilter, Metadata
from scheduler_service.filters.unreadable import (
    REQUIREMENT,
    UNREADABLE,
    reading,
    spec_path,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class AggregateInstanceExtraSpecsFilter(AggregateFilter):
    """Passes hosts whose aggregates satisfy every extra spec of the flavor.

    Extra specs without a scope count, and those with the scope
    ``aggregate_instance_extra_specs:``; other scopes are ignored. The key has
    to be in the metadata of one of the host's aggregates, and one of its
    values, which are split at commas, has to match. A value that is no number
    does not match where numbers are compared. Requirements use the operators
    of extra specs.
    """

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        specs = []
        for key, requirement in request.flavor.extra_specs.items():
            scope, colon, name = key.partition(':')
            if not colon:
                specs.append((key, requirement))
            elif scope == specops.AGGREGATE_SCOPE:
                specs.append((name, requirement))
        return tuple(specs) or None

    def mismatch(
        self, metadata: Metadata, key: tuple[tuple[str, str], ...]
    ) -> str:
        for name, requirement in key:
            required = f'the flavor requires {name}={requirement}'
            values = metadata.get(name)
            if values is None:
                return (
                    f'{required}, no aggregate of the host has the metadata '
                    'key'
                )
            try:
                with reading(spec_path(name), REQUIREMENT, requirement):
                    matches = _any_matches(values, requirement)
            except specops.NotComparableError as fault:
                return f'{UNREADABLE}{required}, aggregate metadata: {fault}'
            if not matches:
                return (
                    f'{required}, aggregate metadata has '
                    f'{name}={",".join(sorted(values))}'
                )
        return ''


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
