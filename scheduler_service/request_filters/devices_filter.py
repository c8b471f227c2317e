"""devices_filter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler_service.model import Aggregate, Request
from scheduler_service.request_filters.base import RequestFilter, Scope
from scheduler_service.request_filters.support.trait_names import trait_name
from scheduler_service.settings import Settings


class DevicesFilter(RequestFilter):
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
        if _is_true(
            _either(request, 'hw:virtio_packed_ring', 'hw_virtio_packed_ring')
        ):
            required.add('COMPUTE_NET_VIRTIO_PACKED')
        if _either(request, 'hw:sound_model', 'hw_sound_model') == 'virtio':
            required.add('COMPUTE_SOUND_MODEL_VIRTIO')
        if _is_true(
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


def _either(request: Request, spec: str, prop: str) -> Any:
    """Return what the flavor says, else what the image does."""
    value = request.flavor.extra_specs.get(spec)
    return request.image_properties.get(prop) if value is None else value


def _is_true(value: Any) -> bool:
    """Whether an extra spec or image property says yes."""
    return str(value).strip().lower() in ('1', 't', 'true', 'on', 'y', 'yes')
