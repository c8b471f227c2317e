"""devices_filter requires the traits of devices and features."""

import pytest

from scheduler_service.request_filters import devices_filter
from tests.support.plugins import scope_of

ENCRYPTION = 'COMPUTE_EPHEMERAL_ENCRYPTION'


def traits(extra_specs=None, properties=None):
    request = {
        'flavor': {'extra_specs': extra_specs or {}},
        'image': {'properties': properties or {}},
    }
    return scope_of(devices_filter, request).required_traits


@pytest.mark.parametrize(
    ('extra_specs', 'expected'),
    [
        ({}, set()),
        ({'accel:device_profile': 'gpu'}, {'COMPUTE_ACCELERATORS'}),
        ({'accel:device_profile': ''}, set()),
        ({'hw:virtio_packed_ring': 'true'}, {'COMPUTE_NET_VIRTIO_PACKED'}),
        ({'hw:virtio_packed_ring': 'no'}, set()),
        ({'hw:sound_model': 'virtio'}, {'COMPUTE_SOUND_MODEL_VIRTIO'}),
        ({'hw:sound_model': 'ich9'}, set()),
        ({'hw:ephemeral_encryption': 'Yes'}, {ENCRYPTION}),
        (
            {
                'hw:ephemeral_encryption': 'true',
                'hw:ephemeral_encryption_format': 'luks',
            },
            {ENCRYPTION, f'{ENCRYPTION}_LUKS'},
        ),
        # A format alone does not encrypt anything.
        ({'hw:ephemeral_encryption_format': 'luks'}, set()),
    ],
)
def test_an_extra_spec_stands_for_a_trait(extra_specs, expected):
    assert traits(extra_specs) == expected


@pytest.mark.parametrize(
    ('properties', 'expected'),
    [
        ({'hw_virtio_packed_ring': True}, {'COMPUTE_NET_VIRTIO_PACKED'}),
        ({'hw_sound_model': 'virtio'}, {'COMPUTE_SOUND_MODEL_VIRTIO'}),
        ({'hw_ephemeral_encryption': 'true'}, {ENCRYPTION}),
        ({'accel:device_profile': 'gpu'}, set()),
    ],
)
def test_an_image_property_stands_for_the_same_trait(properties, expected):
    assert traits(properties=properties) == expected


def test_the_flavor_counts_where_both_state_it():
    extra_specs = {'hw:virtio_packed_ring': 'false'}
    assert traits(extra_specs, {'hw_virtio_packed_ring': 'true'}) == set()
