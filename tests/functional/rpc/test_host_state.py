"""What hosts report over the bus."""

import uuid

import pytest

from scheduler_service import errors
from scheduler_service.store.reading import loading
from scheduler_service.store.records import host_reports
from scheduler_service.store.workers import host_state_writer
from tests.support.documents import CONTEXT, SMALL
from tests.support.services import hosts_of
from tests.support.stores import claim_state, stored_host
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker


@pytest.fixture
def service(make_service):
    return make_service('rabbit')


def test_host_is_chosen_when_it_reported_itself(service):
    service.client.cast(
        CONTEXT, 'update_host_state', hosts=[
            {'host': 'compute-4', 'memory_mb_used': 8100},
            {'host': 'compute-9', 'vcpus': 8, 'memory_mb': 32000,
             'local_gb': 100, 'ram_allocation_ratio': 1.0},
        ],
    )  # fmt: skip
    wait_until(lambda: stored_host(service.store, 'compute-9'))
    wait_until(
        lambda: stored_host(service.store, 'compute-4').memory_mb_used == 8100
    )

    def chosen():
        answer = service.client.select_destinations(
            CONTEXT, {'flavor': SMALL}, claim=False
        )
        return answer['placements'][0]['selected']['host'] == 'compute-9'

    wait_until(chosen)


def test_claim_is_confirmed_when_its_host_has_the_instance(service):
    answer = service.client.select_destinations(CONTEXT, {'flavor': SMALL})
    placed = answer['placements'][0]
    uuid_, name = placed['instance_uuid'], placed['selected']['host']
    assert claim_state(service.store, uuid_) == 'claimed'
    call = service.client.call
    changed = call(
        CONTEXT, 'update_instance_info', host_name=name,
        instance_info={'uuid': uuid_.upper(), 'task_state': 'spawning'},
    )  # fmt: skip
    assert changed == 1
    assert claim_state(service.store, uuid_) == 'confirmed'
    assert call(CONTEXT, 'delete_instance_info', host_name=name,
               instance_uuid=uuid_) == [uuid_]  # fmt: skip
    assert claim_state(service.store, uuid_) is None
    assert stored_host(service.store, name).memory_mb_used == 0


def test_zone_is_used_when_an_aggregate_is_reported(service):
    call = service.client.call
    one = str(uuid.uuid4())
    told = {'host_name': 'compute-2', 'instance_uuids': [one]}
    assert call(CONTEXT, 'sync_instance_info', **told) == [one]
    assert call(CONTEXT, 'sync_instance_info', **told) == []
    documents = [{'id': 5, 'name': 'new', 'hosts': ['compute-3'],
                  'metadata': {'availability_zone': 'south'}}]  # fmt: skip
    put = {'aggregates': documents}
    assert call(CONTEXT, 'update_aggregates', **put) == 1
    assert call(CONTEXT, 'update_aggregates', **put) == 0

    def chosen():
        request = {'flavor': SMALL, 'availability_zone': 'south'}
        try:
            answer = service.client.select_destinations(
                CONTEXT, request, claim=False
            )
        except errors.NoValidHost:
            return []
        return hosts_of(answer)

    wait_until(lambda: chosen() == ['compute-3'])
    assert call(CONTEXT, 'delete_aggregate', aggregate=5) == 1
    wait_until(lambda: chosen() == [])


@pytest.mark.parametrize(
    ('method', 'args', 'text'),
    [
        ('update_host_state', {'hosts': [{'vcpus': 1}]},
         'hosts[0].host: required'),
        ('update_host_state', {'hosts': [{'host': 'a', 'vcpus': -1}]},
         'hosts[0].vcpus: expected an integer >= 0'),
        ('update_host_state', {'hosts': [{'host': 'a', 'given': 1}]},
         'hosts[0].given: unknown key'),
        ('update_host_state',
         {'hosts': [{'host': 'a', 'hypervisor_version': 10**30}]},
         'hosts[0].hypervisor_version'),
        ('heartbeat', {'hosts': ['a\0']}, 'hosts[0]'),
        ('heartbeat', {'hosts': ['x' * 300]}, 'hosts[0]'),
        ('update_instance_info',
         {'host_name': 'a', 'instance_info': {'uuid': 'no'}},
         'instance_info[0].uuid'),
        ('update_instance_info',
         {'host_name': 'a',
          'instance_info': {'uuid': str(uuid.uuid4()), 'host': 'b'}},
         "is on 'b'"),
        ('delete_aggregate', {'aggregate': {'id': 'x'}}, 'an id'),
        ('delete_aggregate', {'aggregate': {'id': True}}, 'an id'),
        ('sync_instance_info', {'host_name': 'a'}, 'instance_uuids'),
    ],
)  # fmt: skip
def test_report_is_refused_with_its_place_when_it_is_wrong(
    daemon, method, args, text
):
    with pytest.raises(errors.InvalidRequest) as caught:
        daemon.client.call(CONTEXT, method, **args)
    assert text in str(caught.value.args[0])


def test_a_host_keeps_what_it_had_when_its_report_is_refused(service):
    """The whole report is, and nobody else's in the message."""
    good = {'host': 'compute-1', 'num_io_ops': 3,
            'pci_device_pools': [{'count': 2}]}  # fmt: skip
    odd = {'host': 'compute-2', 'num_io_ops': 3,
           'pci_device_pools': [{'count': 2}, {'count': 'abc'}]}  # fmt: skip
    with pytest.raises(errors.InvalidRequest) as caught:
        service.client.call(
            CONTEXT, 'update_host_state', hosts=[odd, good, 'nonsense']
        )
    place = 'hosts[0].pci_device_pools[1].count'
    assert caught.value.facts == {'at': place, 'taken': 1, 'refused': 2}
    assert str(caught.value.args[0]).startswith(f'{place}: expected an int')
    wait_until(lambda: stored_host(service.store, 'compute-1').num_io_ops == 3)
    before = stored_host(service.store, 'compute-2')
    assert (before.num_io_ops, before.pci_device_pools) == (0, [])
    assert service.client.select_destinations(
        CONTEXT, {'flavor': SMALL}, claim=False
    )
    counters = service.client.ping(CONTEXT)['counters']
    assert counters['host_reports_rejected'] == 2

    def refusals():
        with service.store.reading() as conn:
            return host_reports.refusals_of(conn, 'compute-2')

    wait_until(refusals)
    service.client.cast(CONTEXT, 'update_host_state', hosts=[odd, odd])
    wait_until(lambda: refusals().refused == 3)
    assert refusals().reason == (
        'pci_device_pools[1].count: expected an integer >= 0 or null, got '
        '"abc"'
    )


def test_messages_with_odd_aggregates_or_instances_are_counted(service):
    metadata = {'availability_zone': 'z', 'cpu_allocation_ratio': 'inf'}
    for method, args, text in (
        ('update_aggregates',
         {'aggregates': [{'id': 5}, {'id': 6, 'metadata': metadata}]},
         'aggregates[1].metadata.cpu_allocation_ratio: expected a number'),
        ('update_instance_info',
         {'host_name': 'a', 'instance_info': {
             'uuid': str(uuid.uuid4()), 'image_meta': {'properties': 7}}},
         'instance_info[0].image_meta.properties: expected an object'),
    ):  # fmt: skip
        with pytest.raises(errors.InvalidRequest) as caught:
            service.client.call(CONTEXT, method, **args)
        assert text in str(caught.value.args[0])
    counters = service.client.ping(CONTEXT)['counters']
    assert counters['aggregates_rejected'] == 1
    assert counters['instance_reports_rejected'] == 1
    with service.store.reading() as conn:
        assert not {5, 6} & {
            aggregate.id for aggregate in loading.aggregates(conn)
        }


def test_other_reports_are_written_when_one_cannot_be(
    make_service, monkeypatch
):
    service = make_service()
    write = host_state_writer.host_rows.report

    def fails(writer, reports):
        if any(report.host == 'bad' for report in reports):
            raise ValueError('cannot be kept')
        return write(writer, reports)

    monkeypatch.setattr(host_state_writer.host_rows, 'report', fails)
    service.client.cast(
        CONTEXT, 'update_host_state',
        hosts=[{'host': 'good-1'}, {'host': 'bad'}, {'host': 'good-2'}],
    )  # fmt: skip
    wait_until(lambda: stored_host(service.store, 'good-2'))
    assert stored_host(service.store, 'good-1')
    assert stored_host(service.store, 'bad') is None
    counters = service.client.ping(CONTEXT)['counters']
    assert counters['host_reports_rejected'] == 1


def test_move_is_repeated_dropped_or_confirmed_when_asked(service):
    answer = service.client.select_destinations(CONTEXT, {'flavor': SMALL})
    first = answer['placements'][0]
    one = first['instance_uuid']
    asked = {'flavor': SMALL, 'instance_uuids': [one]}

    def move():
        answer = service.client.select_destinations(CONTEXT, asked, move=True)
        return answer['placements'][0]

    moved = move()
    assert moved['selected']['host'] != first['selected']['host']
    # Asked again, the same place is answered for the same move.
    assert move() == moved
    assert service.client.drop_moves(CONTEXT, [one]) == [one]
    assert service.client.drop_moves(CONTEXT, [one]) == []
    again = service.client.select_destinations(CONTEXT, asked)
    assert again['placements'][0] == first
    moved = move()
    assert service.client.confirm(CONTEXT, [one]) == [one]
    again = service.client.select_destinations(CONTEXT, asked)
    assert again['placements'][0] == moved
    assert service.client.release(CONTEXT, [one]) == [one]
