"""require_image_type_support."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler_service.model import Aggregate, Request
from scheduler_service.request_filters.base import RequestFilter, Scope
from scheduler_service.request_filters.support.trait_names import trait_name
from scheduler_service.settings import Settings


class RequireImageTypeSupport(RequestFilter):
    """Requires hosts that support the image's disk format."""

    name = 'require_image_type_support'

    def narrow(
        self,
        request: Request,
        aggregates: Mapping[int, Aggregate],
        settings: Settings,
        scope: Scope,
    ) -> None:
        """Require the format's trait."""
        form = request.image.disk_format if request.image else None
        if form and settings.query_placement_for_image_type_support:
            scope.required_traits.add(f'COMPUTE_IMAGE_TYPE_{trait_name(form)}')
