"""What compute services cast becomes events, and a mirror hears of it."""

import pytest

from scheduler_service import errors
from scheduler_service.compute import translation
from tests.support import nova_wire
from tests.support.nova_wire import thing


def args_of(name):
    return nova_wire.sent(name)['args']


def test_aggregates_are_written_as_they_came():
    event = translation.aggregates(**as_found(args_of('agg'), 'aggregates'))
    (one,) = event.aggregates
    assert (one.id, one.name, one.hosts) == (5, 'a', ['compute-1'])
    assert one.uuid == '158caba9-e15f-480d-a515-43497a085bfe'
    assert one.metadata == {'availability_zone': 'z'}


def as_found(args, name):
    return {'argument': args[name]}


@pytest.mark.parametrize('wrapped', ['object', 'list', 'one'])
def test_aggregates_may_be_a_list_an_object_or_one(wrapped):
    one = thing('Aggregate', '1.3', id=1, hosts=['a'])
    found = {
        'object': thing('AggregateList', '1.3', objects=[one]),
        'list': [one],
        'one': one,
    }[wrapped]
    assert [each.id for each in translation.aggregates(found).aggregates] == [
        1
    ]


def test_an_aggregate_is_removed_by_its_id():
    event = translation.no_aggregate(
        **as_found(args_of('aggdel'), 'aggregate')
    )
    assert event.id == 5


def test_instances_are_written_with_what_is_kept_of_them():
    args = args_of('info')
    event = translation.instances(args['host_name'], args['instance_info'])
    (one,) = event.instances
    assert one.uuid == '5eab9116-d90f-423e-a977-c4e35f6f61a3'
    assert (one.host, one.hypervisor_hostname) == ('compute-1', 'compute-1')
    assert one.project_id == 'a' * 32


def test_images_of_instances_are_read_from_their_system_metadata():
    metadata = {
        'image_hw_disk_bus': 'virtio',
        'image_hw_vif_multiqueue_enabled': 'True',
        'image_os_require_quiesce': 'no',
        'image_hw_cpu_cores': '4',
        'image_disk_format': 'qcow2',
        'image_base_image_ref': 'x',
        'image_os_type': None,
        'owner_project_name': 'someone',
    }
    uuid = '5eab9116-d90f-423e-a977-c4e35f6f61a3'
    known = thing('Instance', '2.8', uuid=uuid, system_metadata=metadata)
    unknown = thing('Instance', '2.8', uuid=uuid)
    (one,) = translation.instances('a', known).instances
    assert one.image_meta == {
        'properties': {
            'hw_disk_bus': 'virtio',
            'hw_vif_multiqueue_enabled': True,
            'os_require_quiesce': False,
            'hw_cpu_cores': '4',
        }
    }
    (one,) = translation.instances('a', unknown).instances
    assert one.image_meta == {}


def test_an_instance_is_removed_from_its_host():
    args = args_of('del')
    event = translation.no_instance(args['host_name'], args['instance_uuid'])
    assert event.host == 'compute-1'
    assert event.uuids == ['037a3ee4-0bf3-435b-90ab-1bcfebe332a8']


def test_a_host_has_these_instances_and_no_others():
    args = args_of('sync')
    event = translation.all_instances(
        args['host_name'], args['instance_uuids']
    )
    assert event.host == 'compute-1'
    assert event.uuids == ['b7df9829-ea2f-47c5-9b0b-f3cdaaee558d']


@pytest.mark.parametrize(
    'found',
    [
        thing('Aggregate', '2.0', id=1),
        thing('Aggregate', '1.3', id='x'),
        [thing('Aggregate', '1.3', id=-1)],
        7,
    ],
)
def test_what_cannot_be_read_is_refused(found):
    with pytest.raises(errors.InvalidRequest):
        translation.aggregates(found)


def test_too_many_are_refused():
    one = thing('Aggregate', '1.3', id=1)
    with pytest.raises(errors.PayloadTooLarge):
        translation.aggregates([one] * 10_001)
