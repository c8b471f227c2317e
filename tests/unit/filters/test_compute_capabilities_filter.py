"""ComputeCapabilitiesFilter matches extra specs with host attributes."""

import pytest

from scheduler_service import errors
from scheduler_service.columns.topology import EACH_TIME
from scheduler_service.filters.hosts.compute_capabilities_filter import (
    ComputeCapabilitiesFilter,
)
from scheduler_service.model import documents
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from tests.support.plugins import has_opinion, inventory, passing, reason

HOSTS = inventory(
    a={
        'hypervisor_type': 'QEMU',
        'memory_mb': 1024,
        'memory_mb_used': 512,
        'cpu_info': {
            'arch': 'x86_64',
            'features': ['aes', 'mmx'],
            'topology': {'cores': 4},
        },
        'stats': {'tier': 'gold', 'secure': True},
    }
)


def flavor(**extra_specs):
    return {'flavor': {'extra_specs': extra_specs}}


@pytest.mark.parametrize(
    ('path', 'requirement', 'passes'),
    [
        ('hypervisor_type', 'QEMU', True),
        ('hypervisor_type', 'KVM', False),
        ('hypervisor_type', 's== QEMU', True),
        ('free_ram_mb', '>= 512', True),
        ('free_ram_mb', '>= 513', False),
        ('free_ram_mb', '512', True),
        ('free_ram_mb', '51', False),
        ('free_ram_mb', '<or> 256 <or> 512', True),
        ('free_ram_mb', '<in> 51', True),
        ('free_ram_mb', '<in> 52', False),
        ('free_ram_mb', 's!= 512', False),
        ('free_ram_mb', 's!= 51', True),
        ('free_ram_mb', '', False),
        ('cpu_info:arch', '<or> x86_64 <or> i686', True),
        ('cpu_info:topology:cores', '>= 4', True),
        ('cpu_info:topology:threads', '>= 1', False),
        # A list is compared as it is written, and <in> is a substring test.
        ('cpu_info:features', '<in> aes', True),
        ('cpu_info:features', '<in> ae', True),
        # Stats may be named as attributes.
        ('stats:tier', 'gold', True),
        ('tier', 'gold', True),
        ('secure', 'True', True),
        ('secure', 'true', False),
        ('unknown', 'x', False),
        ('', 'x', False),
    ],
)
def test_a_scoped_spec_names_a_path_of_attributes(path, requirement, passes):
    request = flavor(**{f'capabilities:{path}': requirement})
    hosts = passing(ComputeCapabilitiesFilter(), HOSTS, request)
    assert hosts == (['a'] if passes else [])


@pytest.mark.parametrize(
    ('key', 'requirement', 'passes'),
    [
        ('hypervisor_type', 'KVM', False),
        ('hypervisor_type', 'QEMU', True),
        ('tier', 'silver', False),
        ('unknown', 'x', True),
        ('capabilities', 'x', True),
        ('hw:cpu_policy', 'dedicated', True),
    ],
)
def test_a_spec_without_a_scope_counts_where_the_host_has_the_attribute(
    key, requirement, passes
):
    request = flavor(**{key: requirement})
    hosts = passing(ComputeCapabilitiesFilter(), HOSTS, request)
    assert hosts == (['a'] if passes else [])


@pytest.mark.parametrize(
    ('cpu_info', 'passes'),
    [
        ('{"arch": "x86_64"}', True),
        ('not JSON', False),
        ('', False),
        (None, False),
    ],
)
def test_a_text_on_the_path_is_parsed_as_json(cpu_info, passes):
    document = inventory(a={'cpu_info': cpu_info})
    request = flavor(**{'capabilities:cpu_info:arch': 'x86_64'})
    hosts = passing(ComputeCapabilitiesFilter(), document, request)
    assert hosts == (['a'] if passes else [])


def test_address_bits_of_the_flavor_are_a_requirement_on_cpu_info():
    document = inventory(
        a={'cpu_info': {'maxphysaddr': {'bits': 46}}},
        b={'cpu_info': {'maxphysaddr': {'bits': 40}}},
        c={},
    )
    request = flavor(**{'hw:maxphysaddr_bits': '42'})
    assert passing(ComputeCapabilitiesFilter(), document, request) == ['a']


@pytest.mark.parametrize('extra_specs', [{}, {'hw:cpu_policy': 'shared'}])
def test_it_has_no_opinion_without_specs_of_its_own(extra_specs):
    request = flavor(**extra_specs)
    assert not has_opinion(ComputeCapabilitiesFilter(), HOSTS, request)


@pytest.mark.parametrize(
    ('path', 'requirement'),
    [('hypervisor_type', '>= x'), ('free_ram_mb', '<or>')],
)
def test_a_requirement_without_its_values_fails_the_request(path, requirement):
    request = flavor(**{f'capabilities:{path}': requirement})
    with pytest.raises(errors.InvalidRequest):
        passing(ComputeCapabilitiesFilter(), HOSTS, request)


def test_the_reason_names_the_specs_that_do_not_match():
    request = flavor(
        **{
            'capabilities:hypervisor_type': 's== KVM',
            'capabilities:free_ram_mb': '>= 256',
            'capabilities:cpu_info:vendor': 'AMD',
            'tier': 'silver',
            'unknown': 'x',
        }
    )
    assert reason(ComputeCapabilitiesFilter(), HOSTS, request) == (
        'the host does not match hypervisor_type s== KVM (it has QEMU); '
        'cpu_info:vendor AMD (it has none); tier silver (it has gold)'
    )


def key(specs):
    request = documents.request({'flavor': {'extra_specs': specs}}).with_ids()
    hosts = table(inventory(a={}))
    return ComputeCapabilitiesFilter().mask_key(hosts, request, Settings())


def test_the_key_tells_a_spec_with_the_scope_from_one_without():
    assert key({'capabilities:tier': 'a'}) != key({'tier': 'a'})


def test_masks_of_attributes_that_follow_the_load_are_not_kept():
    assert key({'capabilities:free_ram_mb': '>= 1'}) is EACH_TIME
    assert key({'hw:cpu_policy': 'dedicated'}) is None
