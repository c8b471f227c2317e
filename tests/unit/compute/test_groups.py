"""Groups of resources of ports, devices and extra specs are understood."""

from __future__ import annotations

import uuid

from scheduler_service.compute import translation
from scheduler_service.compute.placement import candidates
from scheduler_service.model import documents
from tests.support.nova_wire import flavor, spec, thing

PORT = str(uuid.uuid4())


def translated(**fields):
    """Return our request for a RequestSpec with these fields."""
    return translation.translate(
        spec(**fields), [str(uuid.uuid4())], {}
    ).request


def group(**fields):
    return thing(
        'RequestGroup', '1.3', **{'use_same_provider': True, **fields}
    )


def test_the_group_of_a_port():
    made = translated(
        requested_resources=[
            group(
                requester_id=PORT,
                resources={'NET_BW_EGR_KILOBIT_PER_SEC': 1000},
                required_traits=['CUSTOM_PHYSNET_P1'],
                forbidden_traits=[],
                aggregates=[['a', 'b']],
                forbidden_aggregates=['c'],
                in_tree=None,
            )
        ],
        request_level_params=thing(
            'RequestLevelParams', '1.1', same_subtree=[[PORT]]
        ),
    )
    (found,) = made.resource_groups
    assert found.suffix == PORT
    assert found.resources == {'NET_BW_EGR_KILOBIT_PER_SEC': 1000}
    assert found.required == ['CUSTOM_PHYSNET_P1']
    assert found.aggregates == ['a,b']
    assert found.forbidden_aggregates == ['c']
    assert made.same_subtree == [[PORT]]


def test_numbered_extra_specs():
    made = translated(
        flavor=flavor(
            extra_specs={
                'resources1:VGPU': '1',
                'trait1:CUSTOM_A': 'required',
                'resources_x:VGPU': '2',
                'trait_x:CUSTOM_B': 'forbidden',
                'group_policy': 'isolate',
                'resources:VCPU': '3',
            }
        ),
        requested_resources=[group(resources={'CUSTOM_Z': 1})],
    )
    found = {one.suffix: one for one in made.provider_groups}
    assert found['1'].required == ['CUSTOM_A']
    assert found['_x'].resources == {'VGPU': 2}
    assert found['_x'].forbidden == ['CUSTOM_B']
    # A group without a name gets the next number.
    assert found['2'].resources == {'CUSTOM_Z': 1}
    assert made.policy_of_groups == 'isolate'
    assert made.own_resources['VCPU'] == 3


def test_extra_specs_that_mean_nothing_are_left_out():
    specs = {
        'resources1:VGPU': 'x',
        'resources1:WRONG': '1',
        'resources:WRONG': '1',
        'trait1:CUSTOM_A': 'maybe',
        'group_policy': 'isolated',
    }
    made = translated(flavor=flavor(extra_specs=specs))
    assert made.provider_groups == []
    assert not made.policy_of_groups
    assert 'WRONG' not in made.resources


def test_a_class_of_a_group_is_not_taken_of_the_flavor_as_well():
    specs = {'resources1:VCPU': '2', 'resources1:MEMORY_MB': '1024'}
    made = translated(flavor=flavor(extra_specs=specs))
    assert made.own_resources == {'DISK_GB': 20}
    assert made.resources == {'DISK_GB': 20, 'MEMORY_MB': 1024, 'VCPU': 2}


def test_devices_name_the_groups_that_claim_them():
    device = str(uuid.uuid4())
    pci = thing(
        'InstancePCIRequests',
        '1.1',
        requests=[
            thing(
                'InstancePCIRequest',
                '1.4',
                count=1,
                spec=[{'resource_class': 'CUSTOM_PCI_8086_1234'}],
                request_id=device,
            )
        ],
    )
    alias = flavor(extra_specs={'pci_passthrough:alias': 'qat:1'})
    resources = {'CUSTOM_PCI_8086_1234': 1}
    made = translated(
        flavor=alias,
        pci_requests=pci,
        requested_resources=[
            group(requester_id=f'{device}-0', resources=resources)
        ],
    )
    (requested,) = made.pci_requests
    assert requested.groups == device
    assert requested.alternatives == [{}]
    assert made.resource_groups[0].resources == resources


def test_only_devices_of_a_candidate_are_compared_with_cells():
    """Of a group they are those of its provider; others are of any."""
    made = documents.request(
        {
            'pci_requests': [
                {'count': 3, 'alternatives': [{'vendor_id': 'a'}],
                 'groups': 'g', 'numa_policy': 'required'},
                {'count': 1, 'alternatives': [{'vendor_id': 'b'}]},
            ]
        }
    )  # fmt: skip
    tree = candidates.Tree(
        {},
        {'': ['r'], 'g-0': ['p'], 'g-1': ['q'], 'g-2': ['p'], 'g2-0': ['r']},
    )
    asked = candidates.with_devices(made, tree).pci_requests
    assert [
        (device.count, device.alternatives, device.numa_policy)
        for device in asked
    ] == [
        (2, [{'vendor_id': 'a', 'rp_uuid': 'p'}], 'required'),
        (1, [{'vendor_id': 'a', 'rp_uuid': 'q'}], 'required'),
        (1, [{'vendor_id': 'b'}], 'legacy'),
    ]
