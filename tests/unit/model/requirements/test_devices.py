"""Aliases of devices are checked, and read as compute services read them."""

from __future__ import annotations

import json

import pytest

from scheduler_service import errors
from scheduler_service.model import documents
from scheduler_service.model.requirements.devices import (
    aliases,
    check_aliases,
)
from scheduler_service.settings import Settings

NIC = {'name': 'nic', 'vendor_id': '8086', 'product_id': '1572'}


def text(**more):
    """Return the option for one alias."""
    return json.dumps({**NIC, **more})


def without(*keys):
    return json.dumps({k: NIC[k] for k in NIC if k not in keys})


@pytest.mark.parametrize(
    ('alias', 'expected'),
    [
        ("{'name': 'nic', 'vendor_id': '8086'}", 'double quotes'),
        ('[]', 'double quotes'),
        ('nic', 'double quotes'),
        (without('name'), 'a name'),
        (text(name='  '), 'a name'),
        (text(name=' ' + 'x' * 256), 'a name of at most 256'),
        (without('vendor_id', 'product_id'), 'vendor_id and product_id'),
        (without('product_id'), 'vendor_id and product_id'),
        (text(vendor_id='80861'), 'four hexadecimal digits as vendor_id'),
        (text(product_id=''), 'four hexadecimal digits as product_id'),
        (text(device_id='1'), 'no key but'),
        (text(device_type='type-vf'), 'type-VF as device_type'),
        (text(device_type='vdpa'), 'as device_type'),
        (text(numa_policy='near'), 'socket as numa_policy'),
        (text(numa_policy=''), 'as numa_policy'),
        (text(capability_type='usb'), 'pci as capability_type'),
        (text(live_migratable='perhaps'), 'as live_migratable'),
        (text(vendor_id=8086), 'JSON object of texts'),
    ],
)
def test_an_alias_that_is_not_valid_says_what_is_expected(alias, expected):
    with pytest.raises(ValueError, match=expected):
        check_aliases((alias,))


def test_a_resource_class_has_no_alternatives():
    of_type = '{"name": "nic", "device_type": "type-VF", %s}'
    by_class = of_type % '"resource_class": "CUSTOM_A"'
    check_aliases((by_class,))
    with pytest.raises(ValueError, match='one resource_class, in the alias'):
        check_aliases((by_class, by_class))


def test_aliases_of_one_name_are_alternatives():
    of_type = {'device_type': 'type-VF', 'numa_policy': 'required'}
    found = aliases(
        (
            text(name=' nic ', **of_type),
            text(product_id='10fb', live_migratable='Yes', **of_type),
        )
    )
    assert found.keys() == {'nic'}
    first, second = map(dict, found['nic'].alternatives)
    assert first == {
        'vendor_id': '8086',
        'product_id': '1572',
        'dev_type': 'type-VF',
    }
    assert second['live_migratable'] == 'true'
    assert found['nic'].policy == 'required'


@pytest.mark.parametrize(
    'more', [{}, {'device_type': 'type-PF'}, {'numa_policy': 'legacy'}]
)
def test_aliases_of_one_name_have_one_type_and_policy(more):
    first = {'device_type': 'type-VF', 'numa_policy': 'required'}
    with pytest.raises(ValueError, match='one device_type'):
        aliases((text(**first), text(**{'numa_policy': 'required', **more})))


def devices(asked, *texts, **specs):
    """Return the devices of a request for aliases."""
    extra = {'pci_passthrough:alias': asked, **specs}
    request = documents.request({'flavor': {'extra_specs': extra}})
    return request.devices(Settings(pci_aliases=texts or (text(),)))


def test_blanks_around_names_and_counts_do_not_matter():
    (device,) = devices(' nic : 2 ')
    assert (device.name, device.needed, device.policy) == ('nic', 2, 'legacy')


def test_the_policy_of_the_flavor_goes_before_that_of_the_alias():
    alias = text(numa_policy='required')
    (device,) = devices('nic:1', alias)
    assert device.policy == 'required'
    policy = {'hw:pci_numa_affinity_policy': 'preferred'}
    (device,) = devices('nic:1', alias, **policy)
    assert device.policy == 'preferred'


@pytest.mark.parametrize(
    'asked', ['nic', 'nic:0', 'nic:x', 'nic:1:1', 'nic:1,', '', 'gpu:1']
)
def test_what_names_no_devices_is_refused(asked):
    with pytest.raises(errors.InvalidRequest, match='pci_passthrough:alias'):
        devices(asked)


def test_devices_of_a_resource_class_are_for_the_compute_service():
    alias = '{"name": "nic", "resource_class": "CUSTOM_NIC"}'
    check_aliases((alias,))
    with pytest.raises(errors.InvalidRequest, match='resource_class'):
        devices('nic:1', alias)
