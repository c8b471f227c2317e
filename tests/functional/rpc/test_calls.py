"""Calls over the bus: in this process and on RabbitMQ."""

import gc
import uuid

import pytest

from scheduler_service import errors
from scheduler_service.model import HostsAnswer
from scheduler_service.store.writing import hosts as host_rows
from tests.support.documents import (
    CONTEXT,
    DEFAULT_POOL,
    OWNER,
    SMALL,
    STRANGER,
)
from tests.support.services import hosts_of
from tests.support.stores import import_inventory
from tests.support.waiting import wait_until


def test_reply_has_hosts_and_reasons_when_instances_are_placed(service):
    answer = service.client.select_destinations(
        CONTEXT, {'flavor': SMALL, 'num_instances': 2}, explain=True
    )
    assert hosts_of(answer) == ['compute-4', 'compute-3']
    first = answer['placements'][0]
    assert first['selected']['zone'] == 'nova'
    assert first['selected']['limits']['memory_mb'] == 8196
    assert [a['host'] for a in first['alternates']] == [
        'compute-2', 'compute-1',
    ]  # fmt: skip
    assert answer['explanation']['hosts'] == 4
    assert answer['explanation']['finalists'][0]['host'] == 'compute-4'


def test_reply_is_the_same_when_a_request_is_repeated(service):
    asked = {
        'flavor': SMALL,
        'request_id': 'req-1',
        'instance_uuids': [str(uuid.uuid4())],
    }
    first = service.client.select_destinations(CONTEXT, asked)
    for _ in range(3):
        service.client.select_destinations(CONTEXT, {'flavor': SMALL})
    assert service.client.select_destinations(CONTEXT, asked) == first


def test_nothing_is_claimed_when_claim_is_false(service):
    asked = {'flavor': {**SMALL, 'memory_mb': 5000}}
    for _ in range(6):
        answer = service.client.select_destinations(
            CONTEXT, asked, claim=False
        )
        assert hosts_of(answer) == ['compute-4']


def test_hosts_are_free_again_when_claims_are_released(service):
    asked = {'flavor': {**SMALL, 'memory_mb': 8000}, 'num_instances': 4}
    answer = service.client.select_destinations(CONTEXT, asked)
    with pytest.raises(errors.NoValidHost):
        service.client.select_destinations(CONTEXT, asked)
    uuids = [one['instance_uuid'] for one in answer['placements']]
    assert service.client.release(CONTEXT, uuids) == sorted(uuids)
    assert service.client.release(CONTEXT, uuids) == []
    service.client.select_destinations(CONTEXT, asked)


def test_no_valid_host_has_reasons_when_nothing_fits(service):
    with pytest.raises(errors.NoValidHost) as caught:
        service.client.select_destinations(
            CONTEXT,
            {'availability_zone': 'north',
             'flavor': {**SMALL, 'memory_mb': 9000}},
        )  # fmt: skip
    error = caught.value
    assert error.name == 'NoValidHost'
    assert '(closest: compute-2 lacks 806 MB; can never fit: ' in error.args[0]
    assert error.facts['hosts'] == 4


def test_zone_keeps_its_pool_when_scheduled_again(service):
    zone = {'name': 'example.org.', 'id': str(uuid.uuid4())}
    answer = service.client.schedule_zone(CONTEXT, zone, explain=True)
    assert answer['pool_id'] == DEFAULT_POOL
    assert answer['explanation']['funnel'][0]['filter'] == 'default_pool'
    again = service.client.schedule_zone(CONTEXT, zone)
    assert (again['pool_id'], again['zone_id']) == (
        DEFAULT_POOL, zone['id'],
    )  # fmt: skip


def test_zone_without_an_id_or_project_is_its_callers(service):
    zone = {'name': 'shared.example.org.'}
    p = service.client.schedule_zone(OWNER, zone)
    q = service.client.schedule_zone(STRANGER, zone)
    assert p['zone_id'] != q['zone_id']
    again = {**zone, 'project_id': OWNER['project_id']}
    ids = [
        service.client.schedule_zone(OWNER, again)['zone_id'],
        service.client.schedule_many(OWNER, [{'schedule_zone': zone}])[0][
            'result'
        ]['zone_id'],
    ]
    assert ids == [p['zone_id']] * 2


@pytest.mark.parametrize(
    'reply_to',
    [
        {'topic': 't' * 300},
        {'topic': ''},
        {'topic': 'é' * 127, 'server': 'abc'},
        {'topic': 't', 'exchange': 'é' * 128},
    ],
)
def test_a_destination_that_no_broker_has_is_refused(service, reply_to):
    with pytest.raises(errors.InvalidRequest, match='reply_to'):
        service.client.call(
            CONTEXT, 'select_destinations',
            request={'flavor': SMALL}, reply_to=reply_to,
        )  # fmt: skip


def test_each_request_has_its_own_reply_when_sent_as_a_batch(service):
    answers = service.client.schedule_many(
        CONTEXT,
        [
            {'select_destinations': {'flavor': SMALL}},
            {'select_destinations': {'flavor': {'memory_mb': 10**7}}},
            {'select_destinations': {'flavor': {'memory_mb': 'x'}}},
            {'schedule_zone': {'name': 'a.'}},
            {},
        ],
    )
    names = [answer.get('error', {}).get('name') for answer in answers]
    assert names == [
        None, 'NoValidHost', 'InvalidRequest', None, 'InvalidRequest',
    ]  # fmt: skip
    assert answers[0]['result']['placements']
    assert answers[3]['result']['pool_id'] == DEFAULT_POOL
    assert service.client.schedule_many(CONTEXT, []) == []


def test_replies_are_freed_when_they_were_sent(service):
    """Memory stays flat: nothing waits for the garbage collector."""
    one = {'select_destinations': {'flavor': {'memory_mb': 1}}}

    def ask() -> None:
        assert len(service.client.schedule_many(CONTEXT, [one] * 20)) == 20

    ask()
    gc.collect()
    gc.disable()
    try:
        for _ in range(6):
            ask()
        kept = [o for o in gc.get_objects() if isinstance(o, HostsAnswer)]
    finally:
        gc.enable()
    # The last message's may still be in somebody's hands.
    assert len(kept) <= 40


def test_explain_reports_on_a_host_when_one_is_named(service):
    asked = {'flavor': {**SMALL, 'memory_mb': 8193}}
    answer = service.client.explain(CONTEXT, asked, host='compute-1')
    assert hosts_of(answer) == ['compute-4']
    verdicts = answer['nodes'][0]['filters']
    assert all(verdict['passes'] for verdict in verdicts)
    with pytest.raises(errors.HostNotFound):
        service.client.explain(CONTEXT, asked, host='nobody')


def test_hosts_are_left_out_soon_when_an_operator_disables_them(service):
    service.store.write(
        lambda writer: host_rows.set_status(writer, 'compute-4', False, 'test')
    )

    def chosen():
        answer = service.client.select_destinations(
            CONTEXT, {'flavor': SMALL}, claim=False
        )
        return hosts_of(answer)

    wait_until(lambda: chosen() == ['compute-3'])
    service.store.write(
        lambda writer: host_rows.set_status(writer, 'compute-4', True, None)
    )
    wait_until(lambda: chosen() == ['compute-4'])


def test_groups_of_resources_are_claimed_in_the_placement_service_only(
    service,
):
    group = {'suffix': '1', 'resources': {'CUSTOM_A': 1}}
    asked = {'flavor': SMALL, 'resource_groups': [group]}
    with pytest.raises(errors.InvalidRequest, match='group 1 can only'):
        service.client.select_destinations(CONTEXT, asked)


def test_a_request_is_placed_and_counted_when_its_group_is_not_known(service):
    def counted() -> int:
        counters = service.client.ping(CONTEXT)['counters']
        return counters.get('requests_with_unknown_group', 0)

    before = counted()
    known = str(uuid.uuid4())
    group = {'uuid': known, 'name': 'known', 'policy': 'affinity'}
    import_inventory(service.store, {'server_groups': [group]})
    for named in (str(uuid.uuid4()), 'web', known, None):
        asked = {'flavor': SMALL, 'instance_group': named}
        assert service.client.select_destinations(CONTEXT, asked)
    assert counted() == before + 2


def test_a_long_text_is_refused_with_its_place(service):
    long = {'project_id': 'x' * 5000}
    for ask in (
        lambda: service.client.select_destinations(
            CONTEXT, {'flavor': SMALL, **long}
        ),
        lambda: service.client.schedule_zone(CONTEXT, {'name': 'a.', **long}),
    ):
        with pytest.raises(errors.InvalidRequest) as caught:
            ask()
        assert caught.value.facts['at'] == 'project_id'
    fitting = {'flavor': SMALL, 'project_id': 'x' * 255}
    assert service.client.select_destinations(CONTEXT, fitting)
