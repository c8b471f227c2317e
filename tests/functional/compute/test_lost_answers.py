"""A caller that has left is not claimed for; one that waits hears of it."""

import json
import signal
import time
import uuid

import kombu
import pytest
import sqlalchemy as sa

from scheduler_service.compute import translation
from scheduler_service.store import schema
from tests.support import nova_wire
from tests.support.compute import (
    CONTEXT,
    HOSTS,
    hosts_of,
    new_topic,
    publish_request,
)
from tests.support.nova_wire import flavor
from tests.support.services import BUSES
from tests.support.slow_filter import SLOW, SlowFilter
from tests.support.stores import import_inventory
from tests.support.waiting import wait_until

import oslo_messaging  # isort: skip


def claimed(compute):
    """Return the instances that hold a claim."""
    with compute.store.reading() as conn:
        return list(conn.execute(sa.select(schema.instances.c.uuid)).scalars())


def counted(compute, name):
    return compute.daemon.scheduler.health.counters().get(name, {})


def slow(seconds):
    return flavor(name=f'slow:{seconds}')


@pytest.fixture
def compute(request, make_compute):
    return make_compute(getattr(request, 'param', 'inproc'), **SLOW)


@pytest.mark.parametrize('compute', BUSES, indirect=True)
def test_a_request_that_waited_too_long_is_not_claimed_for(compute):
    caller = compute.caller(timeout=1)
    before = SlowFilter.waits
    compute.daemon.scheduler.select_destinations(
        request_of(slow(2.5)), claim=False
    )
    # Both would be decided together, in time, if the second came at once.
    wait_until(lambda: SlowFilter.waits > before)
    with pytest.raises(oslo_messaging.MessagingTimeout):
        caller.select()
    wait_until(lambda: counted(compute, 'requests_expired') == 1)
    assert claimed(compute) == []
    assert counted(compute, 'answers_undone') == {}


def request_of(wanted):
    """Return a request of ours with a flavor of the compute service's."""
    return translation.translate(
        nova_wire.spec(flavor=wanted), [str(uuid.uuid4())], CONTEXT
    ).request


@pytest.mark.parametrize('compute', BUSES, indirect=True)
def test_an_answer_after_the_deadline_leaves_no_claim(compute):
    caller = compute.caller(timeout=1)
    with pytest.raises(oslo_messaging.MessagingTimeout):
        caller.select(flavor=slow(2))
    wait_until(lambda: counted(compute, 'answers_undone') == {'released': 1})
    assert claimed(compute) == []


@pytest.mark.broker
def test_heartbeats_keep_a_caller_waiting(make_compute):
    """Longer than the silence after which it gives up."""
    compute = make_compute('rabbit', **SLOW)
    caller = compute.caller(timeout=60, monitor=3)
    start = time.monotonic()
    instance = str(uuid.uuid4())
    assert caller.select(uuids=[instance], flavor=slow(4.5))
    assert time.monotonic() - start > 4.5
    assert claimed(compute) == [instance]
    assert counted(compute, 'call_heartbeats')['sent'] >= 2


@pytest.mark.broker
def test_our_own_callers_get_heartbeats_too(make_compute):
    compute = make_compute('rabbit', **SLOW)
    client = compute.service.client._client.prepare(
        version='1.0', call_monitor_timeout=3
    )
    wanted = {'flavor': {'name': 'slow:4', 'vcpus': 1}}
    context = {'user_id': 'u', 'project_id': 'p', 'roles': ['admin']}
    reply = client.call(context, 'select_destinations', request=wanted)
    assert reply['placements']
    assert counted(compute, 'call_heartbeats')['sent'] >= 2


# A lost reply is given up soon; a minute is too long for a test.
GIVE_UP = 'oslo_messaging_rabbit__kombu_missing_consumer_retry_timeout'
BRIEFLY = {GIVE_UP: 1}


def publish(compute, instance, replies):
    """Send a request whose replies go to a queue that is missing."""
    publish_request(compute.service.url, compute.topic, instance, replies)


@pytest.mark.broker
def test_a_claim_whose_answer_is_lost_is_released(make_compute):
    compute = make_compute('rabbit', **BRIEFLY)
    publish(compute, str(uuid.uuid4()), f'reply_{uuid.uuid4().hex}')
    wait_until(lambda: counted(compute, 'answers_undone') == {'released': 1})
    assert claimed(compute) == []


@pytest.mark.broker
@pytest.mark.parametrize('by_our_own', [False, True])
def test_a_lost_answer_does_not_undo_what_a_later_request_claimed(
    make_compute, by_our_own
):
    # Not before a busy machine has had the later request.
    compute = make_compute('rabbit', **{**BRIEFLY, GIVE_UP: 4})
    instance = str(uuid.uuid4())
    publish(compute, instance, f'reply_{uuid.uuid4().hex}')
    wait_until(lambda: claimed(compute))
    if by_our_own:
        assert compute.service.select_hosts(instance_uuids=[instance])
    else:
        assert compute.select(uuids=[instance])
    wait_until(lambda: counted(compute, 'answers_undone') == {'kept': 1})
    assert claimed(compute) == [instance]


def test_each_of_many_requests_is_undone(compute):
    client = compute.service.client._client.prepare(version='1.0', timeout=1)
    listed = [
        {'select_destinations': {'flavor': {'name': name, 'vcpus': 1}}}
        for name in ('slow:2', 'small')
    ]
    context = {'user_id': 'u', 'project_id': 'p', 'roles': ['admin']}
    with pytest.raises(oslo_messaging.MessagingTimeout):
        client.call(context, 'schedule_many', requests=listed)
    wait_until(lambda: counted(compute, 'answers_undone') == {'released': 2})
    assert claimed(compute) == []


@pytest.mark.broker
@pytest.mark.db
def test_another_daemon_answers_with_the_host_that_is_claimed(
    make_store, launch, rabbitmq
):
    store, topic = make_store('postgresql'), new_topic()
    import_inventory(store, HOSTS)
    database = store.engine.url.render_as_string(hide_password=False)
    options = (
        f'[scheduler]\ntopic = {new_topic()}\n'
        f'[compute]\nenabled = true\ntopic = {topic}\n'
    )
    instance, replies = str(uuid.uuid4()), f'reply_{uuid.uuid4().hex}'

    def claimed():
        table = schema.allocations
        with store.reading() as conn:
            query = sa.select(table.c.consumer_uuid, table.c.host_id)
            return set(conn.execute(query.distinct()).all())

    first = launch(database, rabbitmq[1], options)
    first.wait_for('Ready:')
    publish_request(rabbitmq[1], topic, instance, replies)
    (before,) = wait_until(claimed)
    first.end(signal.SIGKILL)
    with kombu.Connection(rabbitmq[1].replace('rabbit://', 'amqp://')) as conn:
        channel = conn.channel()
        channel.queue_declare(replies, auto_delete=False, exclusive=True)
        launch(database, rabbitmq[1], options).wait_for('Ready:')
        sent = wait_until(lambda: channel.basic_get(replies, no_ack=True))
    body = json.loads(json.loads(sent.body)['oslo.message'])
    assert hosts_of(body['result'])[0][0] == 'compute-1'
    assert claimed() == {before}
