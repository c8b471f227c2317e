"""ImagePropertiesFilter passes hosts that can run the image."""

import pytest

from scheduler_service import errors
from scheduler_service.filters.hosts.image_properties_filter import (
    ImagePropertiesFilter,
)
from tests.support.plugins import has_opinion, inventory, passing, reason

HOSTS = inventory(
    a={
        'supported_instances': [
            ['x86_64', 'kvm', 'hvm'],
            ['i686', 'kvm', 'hvm'],
            ['x86_64', 'qemu', 'hvm'],
        ],
        'hypervisor_version': 8002000,
        'cpu_info': {'maxphysaddr': {'bits': 46}},
    },
    b={'supported_instances': [['aarch64', 'kvm', 'hvm']]},
    c={},
)


def image(**properties):
    return {'image': {'properties': properties}}


@pytest.mark.parametrize(
    ('properties', 'expected'),
    [
        ({'hw_architecture': 'x86_64'}, ['a']),
        ({'hw_architecture': 'aarch64'}, ['b']),
        ({'img_hv_type': 'kvm'}, ['a', 'b']),
        ({'hw_vm_mode': 'hvm'}, ['a', 'b']),
        ({'hw_vm_mode': 'xen'}, []),
        # One entry has to have all of them.
        ({'hw_architecture': 'x86_64', 'img_hv_type': 'qemu'}, ['a']),
        ({'hw_architecture': 'i686', 'img_hv_type': 'qemu'}, []),
        # Older names of the properties, and other names of the values.
        ({'architecture': 'amd64'}, ['a']),
        ({'hypervisor_type': 'KVM', 'vm_mode': 'hv'}, ['a', 'b']),
    ],
)
def test_one_supported_instance_type_has_to_have_all(properties, expected):
    request = image(**properties)
    assert passing(ImagePropertiesFilter(), HOSTS, request) == expected


@pytest.mark.parametrize(
    'request_',
    [
        {},
        image(),
        image(os_distro='linux'),
        # These two count only beside one of the three.
        image(img_hv_requested_version='>=99'),
        image(hw_maxphysaddr_bits=99),
    ],
)
def test_it_has_no_opinion_on_an_image_that_requires_none_of_the_three(
    request_,
):
    assert not has_opinion(ImagePropertiesFilter(), HOSTS, request_)


@pytest.mark.parametrize(
    ('predicate', 'expected'),
    [
        ('>=8.2', ['a', 'b']),
        ('>8.2', ['b']),
        ('==8.2.0', ['a', 'b']),
        ('>=6.0,<8.2', ['b']),
        ('!=8.2', ['b']),
    ],
)
def test_the_version_has_to_match_where_the_host_reports_it(
    predicate, expected
):
    request = image(img_hv_type='kvm', img_hv_requested_version=predicate)
    assert passing(ImagePropertiesFilter(), HOSTS, request) == expected


def test_a_version_without_an_operator_fails_the_request():
    request = image(img_hv_type='kvm', img_hv_requested_version='6.0')
    with pytest.raises(errors.InvalidRequest, match='operator'):
        passing(ImagePropertiesFilter(), HOSTS, request)


@pytest.mark.parametrize(
    ('bits', 'expected'), [(46, ['a', 'b']), (47, ['b']), ('40', ['a', 'b'])]
)
def test_address_bits_have_to_suffice_where_the_host_reports_them(
    bits, expected
):
    request = image(img_hv_type='kvm', hw_maxphysaddr_bits=bits)
    assert passing(ImagePropertiesFilter(), HOSTS, request) == expected


def test_images_without_an_architecture_have_the_configured_one():
    hosts = passing(
        ImagePropertiesFilter(),
        HOSTS,
        image(),
        image_properties_default_architecture='aarch64',
    )
    assert hosts == ['b']


def test_the_reason_gives_what_is_required_and_what_is_supported():
    request = image(hw_architecture='x86_64', img_hv_requested_version='>=9')
    assert reason(ImagePropertiesFilter(), HOSTS, request, host='b') == (
        'the image requires x86_64, >=9; the host supports '
        '[["aarch64","kvm","hvm"]], hypervisor version not reported'
    )
    assert reason(ImagePropertiesFilter(), HOSTS, request).endswith(
        'hypervisor version 8.2.0'
    )
