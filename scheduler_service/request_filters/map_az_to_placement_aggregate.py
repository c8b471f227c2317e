"""map_az_to_placement_aggregate."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler_service.model import Aggregate, Request
from scheduler_service.request_filters.base import RequestFilter, Scope
from scheduler_service.request_filters.support.aggregate_uuids import (
    aggregate_uuids,
)
from scheduler_service.settings import Settings


class MapAzToPlacementAggregate(RequestFilter):
    """Narrows to the aggregates of the availability zone asked for."""

    name = 'map_az_to_placement_aggregate'

    def narrow(
        self,
        request: Request,
        aggregates: Mapping[int, Aggregate],
        settings: Settings,
        scope: Scope,
    ) -> None:
        """Require one of the zone's aggregates, if it has any."""
        zone = request.availability_zone
        if not zone or not settings.query_placement_for_availability_zone:
            return
        found = aggregate_uuids(
            one
            for one in aggregates.values()
            if one.metadata.get('availability_zone') == zone
        )
        if found:
            scope.required_aggregates.append(found)
