"""The host filter AggregateInstanceTypeFilter."""

from __future__ import annotations

from scheduler_service import specops
from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import Key
from scheduler_service.filters.base import HostFilter
from scheduler_service.filters.support.extra_specs import AGGREGATE_SCOPE
from scheduler_service.filters.support.metadata_requirements import failing_key
from scheduler_service.filters.support.unreadable import (
    UNREADABLE,
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
        return table.by_aggregates(
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
        scoped = specs.get(f'{AGGREGATE_SCOPE}:{key}', 'no value')
        return (
            f'{key}: the flavor has {specs.get(key, scoped)}, aggregate '
            f'metadata has {values}'
        )
