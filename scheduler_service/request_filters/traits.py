"""Request filters that require or forbid traits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler_service.model import Aggregate, Request
from scheduler_service.request_filters.base import (
    RequestFilter,
    Scope,
    truthy,
)
from scheduler_service.settings import Settings

_PREFIXES = {
    'hw_cdrom_bus': 'COMPUTE_STORAGE_BUS_',
    'hw_disk_bus': 'COMPUTE_STORAGE_BUS_',
    'hw_video_model': 'COMPUTE_GRAPHICS_MODEL_',
    'hw_vif_model': 'COMPUTE_NET_VIF_MODEL_',
    'hw_architecture': 'HW_ARCH_',
    'hw_emulation_architecture': 'COMPUTE_ARCH_',
    'hw_viommu_model': 'COMPUTE_VIOMMU_',
}


def trait_name(text: Any) -> str:
    """Return a value as it stands in the names of traits."""
    return str(text).upper().replace('-', '_')


def _either(request: Request, spec: str, prop: str) -> Any:
    """Return what the flavor says, else what the image does."""
    value = request.flavor.extra_specs.get(spec)
    return request.image_properties.get(prop) if value is None else value


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


class ComputeStatus(RequestFilter):
    """Forbids hosts that are marked as disabled by their trait."""

    name = 'compute_status_filter'

    def narrow(
        self,
        request: Request,
        aggregates: Mapping[int, Aggregate],
        settings: Settings,
        scope: Scope,
    ) -> None:
        """Forbid the trait, always."""
        scope.forbidden_traits.add('COMPUTE_STATUS_DISABLED')


class TransformImageMetadata(RequestFilter):
    """Requires the traits that the image's properties stand for."""

    name = 'transform_image_metadata'

    def narrow(
        self,
        request: Request,
        aggregates: Mapping[int, Aggregate],
        settings: Settings,
        scope: Scope,
    ) -> None:
        """Require one trait for each property that has one."""
        if not settings.image_metadata_prefilter:
            return
        for name, prefix in _PREFIXES.items():
            value = request.image_properties.get(name)
            if value:
                scope.required_traits.add(prefix + trait_name(value))


class Devices(RequestFilter):
    """Requires hosts that can give the instance the devices it asks for.

    Accelerators, packed virtqueues, ephemeral encryption, virtio sound.
    """

    name = 'devices_filter'

    def narrow(
        self,
        request: Request,
        aggregates: Mapping[int, Aggregate],
        settings: Settings,
        scope: Scope,
    ) -> None:
        """Require a trait for each."""
        specs, required = request.flavor.extra_specs, scope.required_traits
        if specs.get('accel:device_profile'):
            required.add('COMPUTE_ACCELERATORS')
        if truthy(
            _either(request, 'hw:virtio_packed_ring', 'hw_virtio_packed_ring')
        ):
            required.add('COMPUTE_NET_VIRTIO_PACKED')
        if _either(request, 'hw:sound_model', 'hw_sound_model') == 'virtio':
            required.add('COMPUTE_SOUND_MODEL_VIRTIO')
        if truthy(
            _either(
                request, 'hw:ephemeral_encryption', 'hw_ephemeral_encryption'
            )
        ):
            required.add('COMPUTE_EPHEMERAL_ENCRYPTION')
            form = _either(
                request,
                'hw:ephemeral_encryption_format',
                'hw_ephemeral_encryption_format',
            )
            if form:
                required.add(
                    f'COMPUTE_EPHEMERAL_ENCRYPTION_{trait_name(form)}'
                )
