"""transform_image_metadata turns image properties into traits."""

import pytest

from scheduler_service.request_filters import transform_image_metadata
from tests.support.plugins import scope_of

ON = {'image_metadata_prefilter': True}


def image(**properties):
    return {'image': {'properties': properties}}


@pytest.mark.parametrize(
    ('properties', 'trait'),
    [
        ({'hw_cdrom_bus': 'sata'}, 'COMPUTE_STORAGE_BUS_SATA'),
        ({'hw_disk_bus': 'virtio'}, 'COMPUTE_STORAGE_BUS_VIRTIO'),
        ({'hw_video_model': 'qxl'}, 'COMPUTE_GRAPHICS_MODEL_QXL'),
        (
            {'hw_vif_model': 'e1000-82540em'},
            'COMPUTE_NET_VIF_MODEL_E1000_82540EM',
        ),
        ({'hw_architecture': 'x86_64'}, 'HW_ARCH_X86_64'),
        ({'hw_emulation_architecture': 'aarch64'}, 'COMPUTE_ARCH_AARCH64'),
        ({'hw_viommu_model': 'intel'}, 'COMPUTE_VIOMMU_INTEL'),
    ],
)
def test_a_property_stands_for_a_trait(properties, trait):
    scope = scope_of(transform_image_metadata, image(**properties), **ON)
    assert scope.required_traits == {trait}


def test_properties_add_up():
    request = image(hw_disk_bus='virtio', hw_cdrom_bus='sata')
    scope = scope_of(transform_image_metadata, request, **ON)
    assert len(scope.required_traits) == 2


@pytest.mark.parametrize(
    'request_', [{}, image(os_distro='linux'), image(hw_disk_bus='')]
)
def test_other_properties_stand_for_none(request_):
    assert not scope_of(transform_image_metadata, request_, **ON)
