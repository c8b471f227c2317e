"""Requests, and what they ask for in all."""

from __future__ import annotations

import uuid

import pytest

from scheduler_service import errors
from scheduler_service.model import documents

UUID = '794ccc2c-d751-44fe-b57f-8894c9f5c842'


@pytest.mark.parametrize(
    ('document', 'start'),
    [
        ({'flavor': {'vcpus': 'x'}}, 'flavor.vcpus: '),
        ({'flavor': {'vcpus': 0.5}}, 'flavor.vcpus: expected an integer >= 0'),
        ({'num_instances': 1.5}, 'num_instances: expected an integer >= 1'),
        ({'amounts': {'VCPU': -1}}, 'amounts'),
        ({'traits': {'A': 'maybe'}}, 'traits'),
        ({'pci_requests': [{'alternatives': []}]}, 'pci_requests[0]'),
        ({'numa_topology': {'cells': []}}, 'numa_topology.cells'),
        ({'ignore_nodes': [['a']]}, 'ignore_nodes[0]'),
        ({'nonsense': 1}, 'nonsense'),
        ({'num_instances': 0}, 'num_instances'),
        ({'instance_uuids': ['x']}, 'instance_uuids[0]'),
        ({'retry': {'hosts': [['a']]}}, 'retry.hosts[0]'),
    ],
)
def test_request_is_refused_with_its_place_when_wrong(document, start):
    with pytest.raises(errors.InvalidRequest) as caught:
        documents.request(document)
    assert str(caught.value).startswith(start)
    assert caught.value.facts['at'].startswith(start.partition(':')[0])


def test_request_is_refused_when_it_names_an_instance_twice():
    with pytest.raises(errors.InvalidRequest, match='different'):
        documents.request({'instance_uuids': [UUID, UUID.upper()]})


def test_resources_are_those_of_flavor_and_extra_specs():
    flavor = {
        'vcpus': 2, 'memory_mb': 512, 'root_gb': 1, 'ephemeral_gb': 2,
        'swap': 1025,
        'extra_specs': {
            'resources:CUSTOM_FPGA': '2',
            'resources:VCPU': '0',
            'resources:CUSTOM_BAD': '-1',
            'resources:CUSTOM_WORD': 'many',
            'resources:CUSTOM_ZEROS': '0' * 20 + '7',
            'resources:CUSTOM_MORE': '9' * 5000,
        },
    }  # fmt: skip
    request = documents.request({'flavor': flavor})
    assert request.resources == {
        'MEMORY_MB': 512,
        'DISK_GB': 5,
        'CUSTOM_FPGA': 2,
        'CUSTOM_ZEROS': 7,
        'CUSTOM_MORE': 10**15,
    }
    assert request.disk_mb == 3 * 1024 + 1025


def test_traits_are_those_of_flavor_and_image():
    request = documents.request(
        {
            'flavor': {
                'extra_specs': {
                    'trait:HW_A': 'required',
                    'trait:HW_B': 'forbidden',
                    'trait:HW_C': 'preferred',
                }
            },
            'image': {'properties': {'trait:HW_D': 'required'}},
        }
    )
    assert request.required_traits == {'HW_A', 'HW_D'}
    assert request.forbidden_traits == {'HW_B'}


@pytest.mark.parametrize(
    ('value', 'expected'),
    [
        ('x', 'x'),
        (['x'], 'x'),
        (['x', 'y'], ['x', 'y']),
        ([], None),
        ('', None),
        ([''], None),
        (None, None),
    ],
)
def test_hint_is_unwrapped_when_its_list_has_one_value(value, expected):
    request = documents.request({'scheduler_hints': {'group': value}})
    assert request.hint('group') == expected


def test_ids_are_made_when_they_are_absent():
    made = documents.request({'num_instances': 3}).with_ids()
    assert len(set(made.instance_uuids)) == 3
    assert made.request_id is not None
    assert made.with_ids() is made


def test_zone_has_the_same_id_each_time_when_it_has_none():
    first = documents.zone({'name': 'a.', 'project_id': 'p'}).with_ids()
    again = documents.zone({'name': 'a.', 'project_id': 'p'}).with_ids()
    other = documents.zone({'name': 'a.', 'project_id': 'q'}).with_ids()
    assert first.id == again.id != other.id


def test_absent_ids_are_the_same_when_the_message_is():
    request = documents.request({'num_instances': 2})
    made = request.with_ids('message/0')
    assert request.with_ids('message/0') == made
    others = request.with_ids('message/1')
    assert {*made.instance_uuids}.isdisjoint(others.instance_uuids)
    assert made.request_id != others.request_id
    assert len({*made.instance_uuids}) == 2


def test_every_instance_gets_a_random_uuid_of_its_own():
    made = documents.request({'num_instances': 1000}).with_ids()
    uuids = [uuid.UUID(one) for one in made.instance_uuids]
    assert len(set(uuids)) == 1000
    assert {one.version for one in uuids} == {4}
    assert [str(one) for one in uuids] == made.instance_uuids


def test_uuids_of_a_message_are_those_of_version_5():
    """So that daemons of different releases make the same."""
    made = documents.request({'num_instances': 3}).with_ids('message/0')
    space = uuid.UUID('6f0d7e1b-5a83-5d0f-9c52-2f6f3ad1c7e4')
    assert made.instance_uuids == [
        str(uuid.uuid5(space, f'message/0/{number}')) for number in range(3)
    ]
    assert made.request_id == f'req-{uuid.uuid5(space, "message/0/request")}'


def test_amounts_go_before_what_follows_from_the_flavor():
    request = documents.request(
        {
            'flavor': {'vcpus': 2, 'extra_specs': {'resources:VGPU': '1'}},
            'amounts': {'PCPU': 2, 'DISK_GB': 0},
        }
    )
    assert request.resources == {'PCPU': 2}


def test_traits_of_the_request_are_added_to_those_of_the_flavor():
    request = documents.request(
        {
            'flavor': {'extra_specs': {'trait:A': 'required'}},
            'traits': {'B': 'required', 'C': 'forbidden'},
        }
    )
    assert request.required_traits == {'A', 'B'}
    assert request.forbidden_traits == {'C'}


def request_of_groups(**fields):
    return documents.request({'flavor': {'vcpus': 2}, **fields})


def test_resources_of_groups_count_for_the_host():
    made = request_of_groups(
        resource_groups=[
            {'suffix': '1', 'resources': {'VGPU': 1, 'VCPU': 1}},
            {'suffix': '2', 'resources': {'VGPU': 2}},
        ]
    )
    # What a group has is not taken of the flavor as well.
    assert made.own_resources == {}
    assert made.resources == {'VCPU': 1, 'VGPU': 3}


@pytest.mark.parametrize(
    ('fields', 'words'),
    [
        (
            {'resource_groups': [{'suffix': '1'}, {'suffix': '1'}]},
            'different suffixes',
        ),
        ({'same_subtree': [['1']]}, 'no group 1'),
        ({'resource_groups': [{'suffix': 'a b'}]}, 'suffix'),
        (
            {'resource_groups': [{'suffix': '1', 'resources': {'X': -1}}]},
            'resources',
        ),
        ({'group_policy': 'x'}, 'group_policy'),
    ],
)
def test_groups_that_say_nothing_sensible_are_refused(fields, words):
    with pytest.raises(errors.InvalidRequest, match=words):
        request_of_groups(**fields)


def test_what_a_request_asks_for_is_read_once_for_requests_of_its_shape():
    document = {'flavor': {'vcpus': 3, 'extra_specs': {'trait:A': 'required'}}}
    first, second, other = (
        documents.checked_request(each).with_ids()
        for each in (
            {**document, 'request_id': 'req-1'},
            {**document, 'request_id': 'req-2'},
            {**document, 'boot_from_volume': True},
        )
    )
    assert second.requested_traits is first.requested_traits == {'A'}
    assert other.requested_traits is not first.requested_traits
    assert (first.request_id, second.request_id) == ('req-1', 'req-2')
    assert first.instance_uuids != second.instance_uuids


def test_a_request_that_means_nothing_is_refused_whenever_it_comes():
    document = {'flavor': {'extra_specs': {'trait:A': 'perhaps'}}}
    for _ in range(2):
        with pytest.raises(errors.InvalidRequest, match='trait:A'):
            documents.checked_request(document)
