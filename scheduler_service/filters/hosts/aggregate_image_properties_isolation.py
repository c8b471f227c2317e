"""The host filter AggregateImagePropertiesIsolation."""

from __future__ import annotations

from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import Key
from scheduler_service.filters.aggregates import AggregateFilter, Metadata
from scheduler_service.model import Request
from scheduler_service.model.image_properties import KNOWN
from scheduler_service.settings import Settings


class AggregateImagePropertiesIsolation(AggregateFilter):
    """Keeps images with other properties off the hosts of an aggregate.

    Each metadata key of a host's aggregates that is also a property of the
    image has to have the image's value among its values, which are split at
    commas. An image without the property may go to any host. Only properties
    that compute services know are compared, and with
    ``aggregate_image_properties_isolation_namespace`` only those whose name
    starts with the namespace and the separator.
    """

    rebuild = True

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        namespace = settings.aggregate_image_properties_isolation_namespace
        separator = settings.aggregate_image_properties_isolation_separator
        prefix = f'{namespace}{separator}' if namespace else ''
        properties = tuple(
            (key, str(value))
            for key, value in request.image_properties.items()
            if value and key in KNOWN and key.startswith(prefix)
        )
        return properties or None

    def mismatch(
        self, metadata: Metadata, key: tuple[tuple[str, str], ...]
    ) -> str:
        for name, value in key:
            allowed = metadata.get(name)
            if allowed is not None and value not in allowed:
                return (
                    f'the image has {name}={value}, aggregate metadata allows '
                    f'{name}={",".join(sorted(allowed))}'
                )
        return ''
