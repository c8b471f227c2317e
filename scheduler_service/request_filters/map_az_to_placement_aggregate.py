"""The request filter map_az_to_placement_aggregate."""

from __future__ import annotations

from scheduler_service.model import Aggregate
from scheduler_service.request_filters.base import (
    RequestFilter,
    ScopedRequest,
    uuids_of,
)


class MapAzToPlacementAggregate(RequestFilter):
    """Keeps a request on the aggregates of its availability zone.

    A zone that no aggregate has adds nothing.
    """

    name = 'map_az_to_placement_aggregate'

    def apply(self, scoped: ScopedRequest) -> None:
        """Require one of the aggregates of the requested zone."""
        request, aggregates, settings, scope = scoped
        zone = request.availability_zone
        if not zone or not settings.query_placement_for_availability_zone:
            return
        uuids = uuids_of(aggregates, 'by zone', _zone, zone)
        if uuids:
            scope.required_aggregates.append(uuids)


def _zone(aggregate: Aggregate) -> list[str | None]:
    return [aggregate.metadata.get('availability_zone')]
