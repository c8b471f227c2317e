"""Amounts and groups of a request: by flavor, extra specs and volumes."""

from __future__ import annotations

import pytest

from scheduler_service import errors
from scheduler_service.model import documents

FLAVOR = {
    'vcpus': 2, 'memory_mb': 512, 'root_gb': 40, 'ephemeral_gb': 1,
    'swap': 1025,
}  # fmt: skip


def request(specs=None, check=True, **fields):
    """Return a request with extra specs."""
    parse = documents.checked_request if check else documents.request
    return parse({'flavor': {**FLAVOR, 'extra_specs': specs or {}}, **fields})


@pytest.mark.parametrize(
    ('specs', 'fields', 'disk_gb', 'disk_mb'),
    [
        ({}, {}, 43, 41 * 1024 + 1025),
        ({}, {'boot_from_volume': True}, 3, 1024 + 1025),
        ({'resources:DISK_GB': '7'}, {}, 7, 7 * 1024),
        ({'resources1:DISK_GB': '7'}, {}, 7, 7 * 1024),
        ({}, {'amounts': {'DISK_GB': 7}}, 7, 7 * 1024),
        ({}, {'amounts': {'VCPU': 7}}, 0, 0),
    ],
)
def test_disk_is_the_same_amount_in_both_units(
    specs, fields, disk_gb, disk_mb
):
    found = request(specs, **fields)
    assert found.resources.get('DISK_GB', 0) == disk_gb
    assert found.disk_mb == disk_mb


def test_extra_specs_make_groups_beside_those_of_the_request():
    found = request(
        {
            'resources1:VGPU': '1',
            'trait1:CUSTOM_A': 'required',
            'trait_NET:CUSTOM_B': 'forbidden',
            'resources1:VCPU': '2',
            'group_policy': 'isolate',
        },
        resource_groups=[{'suffix': 'port', 'resources': {'CUSTOM_N': 3}}],
    )
    one, net, port = found.provider_groups
    assert (one.suffix, one.resources) == ('1', {'VGPU': 1, 'VCPU': 2})
    assert one.required == ['CUSTOM_A']
    assert (net.suffix, net.forbidden) == ('_NET', ['CUSTOM_B'])
    assert port.resources == {'CUSTOM_N': 3}
    assert found.policy_of_groups == 'isolate'
    assert found.own_resources == {'MEMORY_MB': 512, 'DISK_GB': 43}
    assert found.requested_traits == {'CUSTOM_A'}
    with pytest.raises(errors.InvalidRequest) as caught:
        found.refuse_groups()
    assert caught.value.facts['at'] == 'flavor.extra_specs.resources1:VGPU'


@pytest.mark.parametrize(
    ('key', 'value'),
    [
        ('resources:CUSTOM_GOLD', 'x'),
        ('resources:CUSTOM_GOLD', '-1'),
        ('resources:custom_gold', '1'),
        ('resources2:CUSTOM_GOLD', '1.5'),
        ('trait:CUSTOM_A', 'maybe'),
        ('trait_1:CUSTOM_A', ''),
        ('trait:', 'required'),
        ('group_policy', 'isolated'),
        ('member_of', 'in:a'),
        ('in_tree1', 'a'),
        ('same_subtree', '1'),
    ],
)
def test_what_means_nothing_is_refused_by_name(key, value):
    with pytest.raises(errors.InvalidRequest) as caught:
        request({key: value})
    assert caught.value.facts['at'] == f'flavor.extra_specs.{key}'
    # For callers who were checked by others it is left out.
    left_out = request({key: value}, check=False)
    assert 'CUSTOM_GOLD' not in left_out.resources
    assert not left_out.provider_groups


def test_a_group_of_amounts_of_0_asks_for_nothing():
    found = request(
        {
            'resources1:VCPU': '0',
            'resources1:VGPU': '1',
            'resources4:VGPU': '0',
        }
    )
    (group,) = found.provider_groups
    assert (group.suffix, group.resources) == ('1', {'VGPU': 1})
    # Nor is the class of a group taken of the flavor.
    assert found.resources.keys() == {'VGPU', 'MEMORY_MB', 'DISK_GB'}


def test_suffixes_of_flavor_and_request_differ():
    groups = [{'suffix': '1', 'resources': {'CUSTOM_N': 1}}]
    with pytest.raises(errors.InvalidRequest, match='suffixes'):
        request({'resources1:VGPU': '1'}, resource_groups=groups)


def test_dedicated_cpus_have_a_form_without_their_class():
    found = request({'hw:cpu_policy': 'dedicated', 'hw:pmem': 'x'})
    assert 'VCPU' not in found.resources
    assert found.resources['PCPU'] == 2
    assert found.offered_form(['PCPU']) is found
    form = found.offered_form(['VCPU'])
    assert 'PCPU' not in form.resources
    assert form.resources['VCPU'] == 2
    assert form.resources['CUSTOM_PMEM_NAMESPACE_X'] == 1
    assert form.guest == found.guest
    assert form.without_pcpu() is None


@pytest.mark.parametrize(
    ('specs', 'pcpu', 'vcpu'),
    [
        ({'resources:PCPU': '2'}, 2, 0),
        (
            {'hw:cpu_policy': 'dedicated',
             'hw:emulator_threads_policy': 'isolate'},
            3,
            0,
        ),
        ({'hw:cpu_policy': 'mixed', 'hw:cpu_dedicated_mask': '1'}, 1, 1),
        ({'hw:cpu_policy': 'shared', 'hw:numa_nodes': '2'}, 0, 2),
        ({'resources:VCPU': '1'}, 0, 1),
    ],
)  # fmt: skip
def test_cpus_are_of_two_classes(specs, pcpu, vcpu):
    amounts = request(specs).resources
    assert amounts.get('PCPU', 0) == pcpu
    assert amounts.get('VCPU', 0) == vcpu


def test_threads_of_dedicated_cpus_need_a_trait():
    specs = {'hw:cpu_policy': 'dedicated', 'hw:cpu_thread_policy': 'require'}
    found = request(specs)
    assert found.required_traits == {'HW_CPU_HYPERTHREADING'}
    assert not found.offered_form([]).required_traits
    specs['hw:cpu_thread_policy'] = 'isolate'
    assert request(specs).forbidden_traits == {'HW_CPU_HYPERTHREADING'}
