"""The host filter AggregateImagePropertiesIsolation."""

from __future__ import annotations

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import Key
from scheduler_service.filters.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.model.image_properties import KNOWN
from scheduler_service.settings import Settings

Properties = tuple[tuple[str, str], ...]


class AggregateImagePropertiesIsolation(HostFilter):
    """Keeps images with other properties off the hosts of an aggregate.

    Each metadata key of a host's aggregates that is also a property of the
    image has to have the image's value among its values, which are split at
    commas. An image without the property may go to any host. Only properties
    that compute services know are compared, and with
    ``aggregate_image_properties_isolation_namespace`` only those whose name
    starts with the namespace and the separator.
    """

    once = True
    rebuild = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Evaluate each distinct set of aggregates once."""
        properties = _properties(request, settings)
        if not properties:
            return None
        return table.by_aggregate_ids(
            lambda ids: _mismatch(table, ids, properties) is None,
        )

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the properties that are compared, None for none."""
        return _properties(request, settings) or None

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Name the property, its value and the allowed values."""
        ids = table.coded['aggregate_set'].at(row)
        mismatch = _mismatch(table, ids, _properties(request, settings))
        if mismatch is None:
            return 'does not pass'
        key, value, allowed = mismatch
        return (
            f'the image has {key}={value}, aggregate metadata allows '
            f'{key}={",".join(sorted(allowed))}'
        )


def _properties(request: Request, settings: Settings) -> Properties:
    """Return (key, text) of the image properties that are compared."""
    namespace = settings.aggregate_image_properties_isolation_namespace
    separator = settings.aggregate_image_properties_isolation_separator
    prefix = f'{namespace}{separator}' if namespace else ''
    return tuple(
        (key, str(value))
        for key, value in request.image_properties.items()
        if value and key in KNOWN and key.startswith(prefix)
    )


def _mismatch(
    table: HostTable, aggregate_ids: frozenset[int], properties: Properties
) -> tuple[str, str, frozenset[str]] | None:
    """Return (key, value, allowed values) of the first property that fails."""
    metadata = table.split_metadata(aggregate_ids)
    for key, value in properties:
        allowed = metadata.get(key)
        if allowed is not None and value not in allowed:
            return key, value, allowed
    return None
