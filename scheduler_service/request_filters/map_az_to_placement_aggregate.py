"""The request filter map_az_to_placement_aggregate."""

from __future__ import annotations

from scheduler_service.model import Aggregate, Request
from scheduler_service.model.aggregate_map import AggregateMap
from scheduler_service.request_filters.base import (
    RequestFilter,
    Scope,
    uuids_of,
)
from scheduler_service.settings import Settings


class MapAzToPlacementAggregate(RequestFilter):
    """Keeps a request on the aggregates of its availability zone.

    A zone that no aggregate has adds nothing.
    """

    name = 'map_az_to_placement_aggregate'

    def apply(
        self,
        request: Request,
        aggregates: AggregateMap,
        settings: Settings,
        scope: Scope,
    ) -> None:
        """Require one of the aggregates of the requested zone."""
        zone = request.availability_zone
        if not zone or not settings.query_placement_for_availability_zone:
            return
        uuids = uuids_of(aggregates, 'by zone', _zone, zone)
        if uuids:
            scope.required_aggregates.append(uuids)


def _zone(aggregate: Aggregate) -> list[str | None]:
    return [aggregate.metadata.get('availability_zone')]
