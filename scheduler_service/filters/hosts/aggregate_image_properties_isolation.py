"""AggregateImagePropertiesIsolation."""

from __future__ import annotations

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import Key
from scheduler_service.filters.hosts.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.model.image_properties import KNOWN
from scheduler_service.settings import Settings

Wanted = tuple[tuple[str, str], ...]


class AggregateImagePropertiesIsolation(HostFilter):
    """Keeps images with other properties off the hosts of an aggregate.

    For each property of the image that a host's aggregates have in their
    metadata, its value must be one of theirs (split at commas). An image
    without the property goes anywhere. Properties that images in the field
    do not have are ignored.
    """

    once = True
    rebuild = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Judge each distinct set of aggregates once."""
        wanted = _wanted(request, settings)
        if not wanted:
            return None
        return table.by_aggregates(
            lambda ids: _failing(table, ids, wanted) is None,
        )

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the properties that count."""
        return _wanted(request, settings) or None

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Name the property, and what the aggregates have."""
        ids = table.coded['aggregate_set'].at(row)
        failing = _failing(table, ids, _wanted(request, settings))
        if failing is None:
            return 'does not pass'
        key, value, there = failing
        told = ','.join(sorted(there))
        return f'aggregate metadata has {key}={told}, the image {key}={value}'


def _wanted(request: Request, settings: Settings) -> Wanted:
    """Return (key, text) of the image's properties that may be looked at."""
    namespace = settings.aggregate_image_properties_isolation_namespace
    separator = settings.aggregate_image_properties_isolation_separator
    prefix = f'{namespace}{separator}' if namespace else ''
    return tuple(
        (key, str(value))
        for key, value in request.image_properties.items()
        if value and key in KNOWN and key.startswith(prefix)
    )


def _failing(
    table: HostTable, ids: frozenset[int], wanted: Wanted
) -> tuple[str, str, set[str]] | None:
    metadata = table.split_metadata(ids)
    for key, value in wanted:
        there = metadata.get(key)
        if there is not None and value not in there:
            return key, value, there
    return None
