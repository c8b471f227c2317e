"""The request filter transform_image_metadata."""

from __future__ import annotations

from scheduler_service.request_filters.base import (
    RequestFilter,
    ScopedRequest,
    trait_name,
)

_TRAIT_PREFIXES = {
    'hw_cdrom_bus': 'COMPUTE_STORAGE_BUS_',
    'hw_disk_bus': 'COMPUTE_STORAGE_BUS_',
    'hw_video_model': 'COMPUTE_GRAPHICS_MODEL_',
    'hw_vif_model': 'COMPUTE_NET_VIF_MODEL_',
    'hw_architecture': 'HW_ARCH_',
    'hw_emulation_architecture': 'COMPUTE_ARCH_',
    'hw_viommu_model': 'COMPUTE_VIOMMU_',
}


class TransformImageMetadata(RequestFilter):
    """Requires hosts with the devices that the image's properties name.

    The properties ``hw_cdrom_bus``, ``hw_disk_bus``, ``hw_video_model``,
    ``hw_vif_model``, ``hw_architecture``, ``hw_emulation_architecture`` and
    ``hw_viommu_model`` each stand for a trait.
    """

    name = 'transform_image_metadata'

    def apply(self, scoped: ScopedRequest) -> None:
        """Require the trait of each property that the image has."""
        if not scoped.settings.image_metadata_prefilter:
            return
        for name, prefix in _TRAIT_PREFIXES.items():
            value = scoped.request.image_properties.get(name)
            if value:
                scoped.scope.required_traits.add(prefix + trait_name(value))
