"""Requests, and what they ask for in all."""

from __future__ import annotations

import pytest

from scheduler_service import errors
from scheduler_service.model import documents

UUID = '794ccc2c-d751-44fe-b57f-8894c9f5c842'


@pytest.mark.parametrize(
    ('document', 'place'),
    [
        ({'flavor': {'vcpus': 'x'}}, 'flavor.vcpus'),
        ({'nonsense': 1}, 'nonsense'),
        ({'num_instances': 0}, 'num_instances'),
        ({'instance_uuids': ['x']}, 'instance_uuids[0]'),
        ({'retry': {'hosts': [['a']]}}, 'retry.hosts[0]'),
    ],
)
def test_request_is_refused_with_its_place_when_wrong(document, place):
    with pytest.raises(errors.InvalidRequest) as caught:
        documents.request(document)
    assert caught.value.facts['at'] == place


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
        },
    }  # fmt: skip
    request = documents.request({'flavor': flavor})
    assert request.resources == {
        'MEMORY_MB': 512,
        'DISK_GB': 5,
        'CUSTOM_FPGA': 2,
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
