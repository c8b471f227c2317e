"""Documents are checked as a whole, and an error names the place."""

from __future__ import annotations

import pytest

from scheduler_service import errors
from scheduler_service.model import documents
from scheduler_service.model.inventory import Host
from scheduler_service.rpc.context import credentials

UUID = '794ccc2c-d751-44fe-b57f-8894c9f5c842'


@pytest.mark.parametrize(
    ('document', 'message'),
    [
        (
            {'hosts': [{'host': 'a'}] * 1 + [{'host': 'b', 'memory_mb': 'x'}]},
            'hosts[1].memory_mb: expected an integer >= 0, got "x"',
        ),
        (
            {'hosts': [{'host': 'a', 'memory_mb': -1}]},
            'hosts[0].memory_mb: expected an integer >= 0, got -1',
        ),
        ({'hosts': [{'host': 'a', 'cpus': 1}]}, 'hosts[0].cpus: unknown key'),
        ({'hosts': [{}]}, 'hosts[0].host: required, but absent'),
        (
            {'hosts': [{'host': 'a', 'state': 'x'}]},
            'hosts[0].state: "x" is not one of down, up',
        ),
        (
            {'hosts': [{'host': 'a'}, {'host': 'a'}]},
            'hosts[1].host: a a is a duplicate of hosts[0]',
        ),
        (
            {'pools': [{'id': UUID, 'name': 'a'}, {'id': UUID, 'name': 'b'}]},
            f'pools[1].id: {UUID} is a duplicate of pools[0]',
        ),
        (
            {'server_groups': [{'uuid': UUID, 'rules': {'x': 1}}]},
            'server_groups[0].rules: expected the keys max_server_per_host '
            'only, got {"x":1}',
        ),
        (
            {'hosts': [{'host': 'a', 'traits': ['a b']}]},
            'hosts[0].traits[0]: expected a string of A-Z, 0-9 and _, '
            'got "a b"',
        ),
        (
            {'pools': [{'id': 'x', 'name': 'a'}]},
            'pools[0].id: expected a string that is a UUID, got "x"',
        ),
        ([], 'expected an object, got []'),
        ({'hosts': {}}, 'hosts: expected a list, got {}'),
    ],
)
def test_inventory_error_names_the_place(document, message):
    with pytest.raises(errors.InvalidInventory) as caught:
        documents.inventory(document)
    assert caught.value.args[0] == message


def test_inventory_defaults():
    host = documents.inventory({'hosts': [{'host': 'a'}]}).hosts[0]
    assert host.hypervisor_hostname == 'a'
    assert (
        host.uuid
        == documents.inventory({'hosts': [{'host': 'a'}]}).hosts[0].uuid
    )
    assert (host.status, host.state) == ('enabled', 'up')


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
def test_request_error_names_the_place(document, place):
    with pytest.raises(errors.InvalidRequest) as caught:
        documents.request(document)
    assert caught.value.facts['at'] == place


def test_request_refuses_one_instance_twice():
    with pytest.raises(errors.InvalidRequest, match='different'):
        documents.request({'instance_uuids': [UUID, UUID.upper()]})


def test_request_resources_are_the_flavors_and_the_extra_specs():
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


def test_request_traits_come_from_flavor_and_image():
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
def test_hint_of_one_is_unwrapped(value, expected):
    request = documents.request({'scheduler_hints': {'group': value}})
    assert request.hint('group') == expected


def test_with_ids_makes_up_what_is_absent():
    made = documents.request({'num_instances': 3}).with_ids()
    assert len(set(made.instance_uuids)) == 3
    assert made.request_id is not None
    assert made.with_ids() is made


def test_zone_without_an_id_is_the_same_zone_each_time():
    first = documents.zone({'name': 'a.', 'project_id': 'p'}).with_ids()
    again = documents.zone({'name': 'a.', 'project_id': 'p'}).with_ids()
    other = documents.zone({'name': 'a.', 'project_id': 'q'}).with_ids()
    assert first.id == again.id != other.id


def test_depth_is_bounded():
    nested: object = 1
    for _ in range(40):
        nested = [nested]
    with pytest.raises(errors.PayloadTooLarge, match='32 levels'):
        documents.check_depth(nested)
    documents.check_depth([[[1]]])


@pytest.mark.parametrize('bad', ['a\0b', 'a\ud800b'])
def test_text_that_no_database_holds_is_refused_with_its_place(bad):
    hosts = {'hosts': [{'host': 'a'}, {'host': bad}]}
    with pytest.raises(errors.InvalidInventory, match=r'^hosts\[1\]\.host: '):
        documents.inventory(hosts)
    with pytest.raises(errors.InvalidInventory, match=r'^host: '):
        documents.parse_as({'host': bad}, Host)
    with pytest.raises(errors.InvalidRequest, match=r'^project_id: '):
        documents.request({'project_id': bad})
    with pytest.raises(errors.InvalidRequest, match=r'^scheduler_hints: '):
        documents.request({'scheduler_hints': {bad: 'x'}})
    with pytest.raises(errors.InvalidRequest, match=r'^name: '):
        documents.zone({'name': bad})
    with pytest.raises(errors.InvalidRequest, match=r'^context\.user_id: '):
        credentials({'user_id': bad})
    documents.request({'scheduler_hints': {'a': '\\u0000 \U0001f600'}})


@pytest.mark.parametrize('text', [b'{', b'a: [', b'\x80abc'])
def test_read_says_that_it_is_neither_yaml_nor_json(text):
    with pytest.raises(errors.InvalidInventory, match='cannot be read'):
        documents.read(text)


@pytest.mark.parametrize('form', ['json', 'yaml'])
def test_dump_reads_back(form):
    inventory = documents.inventory({'hosts': [{'host': 'a', 'vcpus': 1}]})
    text = documents.dump(inventory, form)
    assert documents.inventory(documents.read(text)) == inventory
