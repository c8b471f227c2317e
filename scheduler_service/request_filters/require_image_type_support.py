"""The request filter require_image_type_support."""

from __future__ import annotations

from scheduler_service.model import Request
from scheduler_service.model.aggregate_map import AggregateMap
from scheduler_service.request_filters.base import (
    RequestFilter,
    Scope,
    trait_name,
)
from scheduler_service.settings import Settings


class RequireImageTypeSupport(RequestFilter):
    """Requires hosts that support the image's disk format."""

    name = 'require_image_type_support'

    def apply(
        self,
        request: Request,
        aggregates: AggregateMap,
        settings: Settings,
        scope: Scope,
    ) -> None:
        """Require the trait of the format, ``COMPUTE_IMAGE_TYPE_QCOW2``."""
        disk_format = request.image.disk_format if request.image else None
        if disk_format and settings.query_placement_for_image_type_support:
            trait = f'COMPUTE_IMAGE_TYPE_{trait_name(disk_format)}'
            scope.required_traits.add(trait)
