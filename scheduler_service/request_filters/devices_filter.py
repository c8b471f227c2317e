"""The request filter devices_filter."""

from __future__ import annotations

from typing import Any

from scheduler_service.model import Request
from scheduler_service.request_filters.base import (
    RequestFilter,
    ScopedRequest,
    trait_name,
)

_TRUE = frozenset(('1', 't', 'true', 'on', 'y', 'yes'))


class DevicesFilter(RequestFilter):
    """Requires hosts that have the devices and features of the instance.

    Accelerators (``accel:device_profile``), packed virtqueues
    (``hw:virtio_packed_ring``), virtio sound (``hw:sound_model``) and
    ephemeral encryption (``hw:ephemeral_encryption`` with its format): each
    an extra spec, and all but the first an image property, too.
    """

    name = 'devices_filter'

    def apply(self, scoped: ScopedRequest) -> None:
        """Require the trait of each device and feature."""
        request, required = scoped.request, scoped.scope.required_traits
        if request.flavor.extra_specs.get('accel:device_profile'):
            required.add('COMPUTE_ACCELERATORS')
        if _is_true(_setting(request, 'virtio_packed_ring')):
            required.add('COMPUTE_NET_VIRTIO_PACKED')
        if _setting(request, 'sound_model') == 'virtio':
            required.add('COMPUTE_SOUND_MODEL_VIRTIO')
        if _is_true(_setting(request, 'ephemeral_encryption')):
            trait = 'COMPUTE_EPHEMERAL_ENCRYPTION'
            required.add(trait)
            encryption = _setting(request, 'ephemeral_encryption_format')
            if encryption:
                required.add(f'{trait}_{trait_name(encryption)}')


def _setting(request: Request, name: str) -> Any:
    """Return the extra spec ``hw:NAME``, else the property ``hw_NAME``."""
    value = request.flavor.extra_specs.get(f'hw:{name}')
    if value is None:
        return request.image_properties.get(f'hw_{name}')
    return value


def _is_true(value: Any) -> bool:
    """Say whether an extra spec or image property is a true boolean."""
    return value is not None and str(value).strip().lower() in _TRUE
