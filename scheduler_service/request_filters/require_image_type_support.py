"""The request filter require_image_type_support."""

from __future__ import annotations

from scheduler_service.request_filters.base import (
    RequestFilter,
    ScopedRequest,
    trait_name,
)


class RequireImageTypeSupport(RequestFilter):
    """Requires hosts that support the image's disk format."""

    name = 'require_image_type_support'

    def apply(self, scoped: ScopedRequest) -> None:
        """Require the trait of the format, ``COMPUTE_IMAGE_TYPE_QCOW2``."""
        image = scoped.request.image
        enabled = scoped.settings.query_placement_for_image_type_support
        if enabled and image is not None and image.disk_format:
            trait = f'COMPUTE_IMAGE_TYPE_{trait_name(image.disk_format)}'
            scoped.scope.required_traits.add(trait)
