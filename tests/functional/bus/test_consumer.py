"""What a consumer takes from RabbitMQ, and what it acknowledges."""

import os
import threading
import time
from typing import Any

import kombu
import pytest

from benchmarks import common
from scheduler_service.bus.options import presence_queue
from scheduler_service.bus.wire import Request
from tests.support import clouds, servers
from tests.support.bus_consumers import (
    Consuming,
    cut,
    ready,
    reconnect,
    sender,
    wait_until_acknowledged,
)
from tests.support.tcp_proxy import Mode, tcp_proxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker


def test_messages_are_left_to_others_when_many_are_in_work(
    consumer, send, channel, topic
):
    for _ in range(140):
        send('ping')
    taken = [consumer.take() for _ in range(128)]
    assert consumer.none_comes()
    wait_until(lambda: ready(channel, topic) == 12)
    consumer.acknowledge(taken[0])
    assert consumer.take().method == 'ping'


def test_messages_are_acknowledged_in_any_order(
    consumer, send, channel, topic
):
    """All but one, whose place is in the middle."""
    for number in range(100):
        send('m', str(number))
    taken = [consumer.take() for _ in range(100)]
    for request in (*taken[60:], *reversed(taken[:50]), *taken[51:60]):
        consumer.acknowledge(request)
    wait_until_acknowledged(consumer, left=1)
    cut(consumer)
    send('last')
    last = consumer.take()
    assert last.method == 'last'
    assert consumer.none_comes()
    # It is in work, and has only a new tag.
    consumer.acknowledge(taken[50])
    consumer.acknowledge(last)
    wait_until_acknowledged(consumer)
    reconnect(consumer)
    assert consumer.none_comes()
    assert ready(channel, topic) == 0


@pytest.mark.parametrize('pauses', [False, True])
def test_waiting_costs_little_when_no_message_comes(consumer, pauses):
    if pauses:
        consumer.bus.pause()
    time.sleep(0.5)
    before = time.process_time()
    time.sleep(1.0)
    # A loop that never waits takes all of it.
    assert time.process_time() - before < 0.3


def test_a_message_is_dropped_when_it_had_its_reply(consumer, send):
    """Its acknowledgement may be lost together with a connection."""
    for text in ('same', 'same', 'other'):
        send('ping', text)
    first = consumer.take()
    # The second came before the first was done: it is the same request.
    assert consumer.take().unique_id == 'other'
    consumer.acknowledge(first)
    send('again', 'same')
    send('last')
    assert consumer.take().method == 'last'
    assert consumer.none_comes()


def test_a_message_is_taken_again_when_it_was_returned(consumer, send):
    send('ping', 'same')
    consumer.take().requeue()
    again = consumer.take()
    assert (again.unique_id, again.redelivered) == ('same', True)


def test_a_clock_ahead_of_the_callers_ends_no_request_that_comes_again(
    consumer, send, channel, topic
):
    # A paused one fetches what comes, unless another daemon consumes.
    channel.basic_consume(presence_queue(topic))
    consumer.bus.pause()
    wait_until(
        lambda: channel.queue_declare(topic, passive=True).consumer_count == 0
    )
    an_hour_ago = {'_context_scheduler_sent_at': time.time() - 3600}
    send('m', expiration=60.0, **an_hour_ago)
    found = wait_until(lambda: channel.basic_get(topic))
    channel.basic_reject(found.delivery_tag, requeue=True)
    consumer.bus.resume()
    again = consumer.take()
    assert again.redelivered
    assert 0 < again.deadline - time.monotonic() <= 60


def test_a_request_in_work_is_not_taken_again_after_a_lost_connection(
    consumer, send, channel, topic
):
    send('m', 'same')
    first = consumer.take()
    assert not first.is_lost()
    reconnect(consumer)
    assert first.is_lost()
    assert consumer.none_comes()
    # Another daemon may have had it meanwhile.
    assert first.is_lost()
    consumer.acknowledge(first)
    wait_until_acknowledged(consumer)
    reconnect(consumer)
    assert consumer.none_comes()
    assert ready(channel, topic) == 0


def test_nothing_but_ping_is_taken_when_the_consumer_pauses(
    consumer, send, channel, topic
):
    consumer.bus.pause()
    send('select_destinations')
    send('ping')
    assert consumer.take().method == 'ping'
    assert consumer.none_comes()
    # What comes goes to daemons that do not pause.
    assert channel.queue_declare(topic, passive=True).consumer_count == 0
    consumer.bus.resume()
    assert consumer.take().method == 'select_destinations'


def test_a_returned_ping_is_answered_when_the_consumer_pauses(
    consumer, send, channel, topic
):
    """Redelivered requests wait for the database, of which pings tell."""
    consumer.bus.pause()
    wait_until(
        lambda: channel.queue_declare(topic, passive=True).consumer_count == 0
    )
    channel.basic_qos(0, 1, False)
    found: list[Any] = []
    channel.basic_consume(topic, 'other', callback=found.append)
    send('ping')
    wait_until(lambda: channel.connection.drain_events(timeout=5) or found)
    channel.basic_cancel('other')
    channel.basic_reject(found[0].delivery_tag, requeue=True)
    request = consumer.take()
    assert request.method == 'ping'
    assert not request.redelivered


def test_what_is_held_is_returned_when_another_daemon_consumes(
    consumer, send, channel, topic
):
    consumer.bus.pause()
    send('select_destinations')
    # However often it looks, it does not take itself for another daemon.
    assert consumer.none_comes(2.0)
    assert ready(channel, topic) == 0
    channel.basic_consume(f'{topic}.consuming', no_ack=True)
    wait_until(lambda: ready(channel, topic) == 1)


def test_what_the_engine_gave_back_is_processed_when_the_consumer_resumes(
    consumer, send, channel, topic
):
    send('select_destinations')
    request = consumer.take()
    consumer.bus.pause()
    assert not consumer.bus.is_unwanted(request) or request.shared
    request.requeue()
    assert consumer.none_comes()
    assert request.settled
    assert ready(channel, topic) == 0
    consumer.bus.resume()
    assert consumer.take() is request
    assert (request.redelivered, request.settled) == (True, False)


def test_what_is_held_is_forgotten_when_its_connection_is_lost(consumer, send):
    """The broker gives it to any daemon, so it comes once."""
    send('select_destinations')
    request = consumer.take()
    consumer.bus.pause()
    request.requeue()
    assert consumer.none_comes()
    cut(consumer)
    wait_until(request.is_lost)
    taken_as_new(consumer, request)


def test_what_is_given_back_is_forgotten_when_the_broker_is_unreachable(
    rabbitmq, consume, channel, topic
):
    """The broker gives it to any daemon, so it comes once."""
    with tcp_proxy(rabbitmq[0].port) as proxy:
        consumer = consume(f'rabbit://guest:guest@127.0.0.1:{proxy.port}')
        sender(channel, topic)('select_destinations')
        request = consumer.take()
        consumer.bus.pause()
        proxy.become(Mode.REFUSE)
        wait_until(request.is_lost)
        request.requeue()
        assert consumer.none_comes()
        proxy.become(Mode.FORWARD)
        taken_as_new(consumer, request)


def taken_as_new(consumer: Consuming, request: Request) -> None:
    """Check that a request comes once more, as any daemon would get it."""
    consumer.bus.resume()
    again = consumer.take()
    assert again is not request
    assert again.unique_id == request.unique_id
    assert again.redelivered
    assert consumer.none_comes()


def test_what_is_given_back_after_its_redelivery_is_held(consumer, send):
    """It is the request that was in work, with a new tag."""
    send('select_destinations')
    request = consumer.take()
    consumer.bus.pause()
    tags = request.tags
    cut(consumer)
    wait_until(lambda: request.tags != tags)
    request.requeue()
    assert consumer.none_comes()
    consumer.bus.resume()
    assert consumer.take() is request
    assert consumer.none_comes()


def test_nothing_is_kept_of_deliveries_of_a_lost_connection(consumer, send):
    for _ in range(5):
        send('m')
    *first, last = [consumer.take() for _ in range(5)]
    for request in first:
        consumer.acknowledge(request)
    unacknowledged = consumer.bus._unacknowledged
    wait_until(lambda: len(unacknowledged) == 1)
    # It is the fifth delivery here, and the first of the next connection.
    cut(consumer)
    wait_until(last.is_lost)
    wait_until(lambda: len(unacknowledged) == 1)
    consumer.acknowledge(last)
    wait_until(lambda: not unacknowledged)


def test_a_message_stays_when_it_was_returned_half_as_often_as_allowed(
    quorum_bus, topic, consume
):
    """A quorum queue drops what comes back more often than its limit says."""
    url = quorum_bus.replace('rabbit://', 'amqp://')
    limited = {**clouds.DURABLE, 'rabbit_quorum_delivery_limit': 4}
    consumer = consume(quorum_bus, **limited)
    with kombu.Connection(url) as connection:
        channel = connection.channel()
        channel.basic_consume(f'{topic}.consuming', no_ack=True)
        sender(channel, topic)('select_destinations')
        for returns in range(2):
            request = consumer.take()
            assert request.returns == returns
            consumer.bus.pause()
            request.requeue()
            wait_until(lambda: ready(channel, topic) == 1)
            consumer.bus.resume()
        request = consumer.take()
        consumer.bus.pause()
        request.requeue()
        assert consumer.none_comes(1.5)
        assert ready(channel, topic) == 0
        consumer.bus.resume()
        assert consumer.take() is request


def test_casts_to_all_servers_and_to_this_server_are_taken(
    consume, channel, topic
):
    consumer = consume(fanout=True)
    producer = kombu.Producer(channel)
    body = {'oslo.version': '2.0', 'oslo.message': '{"method": "m"}'}
    producer.publish(body, exchange=f'{topic}_fanout')
    assert not consumer.take().shared
    producer.publish(body, exchange='openstack', routing_key=f'{topic}.s')
    assert not consumer.take().shared


@pytest.mark.slow
def test_casts_to_all_servers_come_from_a_stream(quorum_bus, topic, consume):
    """Also those that were sent while there was no connection."""
    options = {**clouds.DURABLE, 'rabbit_stream_fanout': True}
    consumer = consume(quorum_bus, fanout=True, **options)
    url = quorum_bus.replace('rabbit://', 'amqp://')

    def cast(number: int) -> None:
        text = f'{{"method": "{number}"}}'
        with kombu.Connection(url) as connection:
            kombu.Producer(connection.channel()).publish(
                {'oslo.version': '2.0', 'oslo.message': text},
                exchange=f'{topic}_fanout',
            )

    cast(1)
    consumer.acknowledge(consumer.take())
    cut(consumer)
    cast(2)
    assert consumer.take().method == '2'
    assert consumer.none_comes()


def test_a_paused_consumer_takes_nothing_when_it_starts(
    consume, channel, topic
):
    first = consume()
    first.bus.pause()
    cut(first)
    wait_until(
        lambda: channel.queue_declare(topic, passive=True).consumer_count == 0
    )
    wait_until(first.bus.is_connected)
    first.bus.resume()
    wait_until(
        lambda: channel.queue_declare(topic, passive=True).consumer_count == 1
    )


def test_a_deleted_queue_is_declared_again(consumer, send, channel, topic):
    channel.queue_delete(topic)
    wait_until(lambda: consumer.bus._number)
    wait_until(lambda: consumer.bus._connection is not None)
    send('m')
    assert consumer.take().method == 'm'


@pytest.mark.parametrize(
    ('lost', 'reason'),
    [
        (Mode.REFUSE, 'Connection refused'),
        # The proxy takes connections, so that it is the broker that is late.
        (Mode.BLACK_HOLE, 'timed out'),
    ],
)
def test_the_reason_of_a_lost_connection_is_named(
    rabbitmq, consume, lost, reason
):
    with tcp_proxy(rabbitmq[0].port) as proxy:
        address = f'127.0.0.1:{proxy.port}'
        bus = consume(f'rabbit://guest:guest@{address}').bus
        assert (bus.is_connected(), bus.fault()) == (True, '')
        proxy.become(Mode.REFUSE)
        wait_until(lambda: not bus.is_connected())
        assert bus.fault().startswith(f'{address}: ')
        if lost is not Mode.REFUSE:
            proxy.become(lost)
        wait_until(lambda: reason in bus.fault())
        assert bus.fault().startswith(f'{address}: ')
        proxy.become(Mode.FORWARD)
        wait_until(bus.is_connected)
        assert bus.fault() == ''


def test_a_first_connection_that_is_late_is_a_fault(rabbitmq, topic):
    with tcp_proxy(rabbitmq[0].port) as proxy:
        proxy.become(Mode.REFUSE)
        address = f'127.0.0.1:{proxy.port}'
        made = Consuming(f'rabbit://guest:guest@{address}', topic, False, {})
        assert made.bus.is_connected()
        made.bus._late_at = time.monotonic() + 0.2
        made.bus._thread.start()
        wait_until(lambda: made.bus.fault().startswith(address))
        proxy.become(Mode.FORWARD)
        wait_until(made.bus.is_connected)
        made.bus.close()


def test_the_next_node_is_used_when_one_does_not_answer(rabbitmq, consume):
    with (
        tcp_proxy(rabbitmq[0].port) as first,
        tcp_proxy(rabbitmq[0].port) as second,
    ):
        first.become(Mode.BLACK_HOLE)
        url = 'rabbit://' + ','.join(
            f'guest:guest@127.0.0.1:{proxy.port}' for proxy in (first, second)
        )
        consumer = consume(url)
        first.become(Mode.FORWARD)
        second.become(Mode.REFUSE)
        wait_until(lambda: consumer.bus._number > 0)
        wait_until(lambda: consumer.bus._connection is not None)


def test_a_refused_login_is_a_fault_without_the_password(
    rabbitmq, topic, consume
):
    server = rabbitmq[0]

    def set_password(password: str, change: str = 'change_password') -> None:
        function = f'{servers.USERS}:{change}'
        servers.call(server, function, topic, password, 'guest')

    set_password('hunter2', 'add_user')
    servers.permit(server, topic)
    with tcp_proxy(server.port) as proxy:
        bus = consume(f'rabbit://{topic}:hunter2@127.0.0.1:{proxy.port}').bus
        set_password('other')
        proxy.become(Mode.REFUSE)
        wait_until(lambda: not bus.is_connected())
        proxy.become(Mode.FORWARD)
        wait_until(lambda: 'ACCESS_REFUSED' in bus.fault())
        assert 'hunter2' not in bus.fault()
        set_password('hunter2')
        wait_until(bus.is_connected)
    servers.call(server, f'{servers.USERS}:delete_user', topic, 'guest')


def test_what_has_arrived_is_taken_before_consuming_ends(consumer, send):
    """A server that stops refuses what it gets afterwards."""
    for _ in range(120):
        send('m')
    consumer.bus.stop_consuming()
    count = consumer.taken.qsize()
    assert consumer.none_comes() is not bool(count)
    time.sleep(0.3)
    assert consumer.taken.qsize() == max(0, count - 1)


@pytest.mark.parametrize('quorum', [True, False])
def test_own_queues_are_deleted_at_the_end_and_expire_without_it(
    rabbitmq, topic, quorum
):
    vhost = servers.new_vhost(*rabbitmq)

    def shared() -> bool:
        left = servers.names_in(rabbitmq[0], vhost, 'queues')
        return left == {topic, f'{topic}.consuming'}

    options = {'rabbit_transient_queues_ttl': 2, 'rabbit_quorum_queue': quorum}
    with tcp_proxy(rabbitmq[0].port) as proxy:
        url = vhost.replace(f':{rabbitmq[0].port}/', f':{proxy.port}/')
        consumer = Consuming(url, topic, True, options)
        consumer.bus.start()
        assert len(servers.names_in(rabbitmq[0], vhost, 'queues')) == 4
        # To the broker it is as if the consumer was killed.
        proxy.become(Mode.REFUSE)
        wait_until(shared, pause_s=0.2)
        proxy.become(Mode.FORWARD)
        wait_until(consumer.bus.is_connected)
        assert not shared()
        consumer.bus.stop_consuming()
        consumer.bus.close()
        assert shared()


def test_heartbeats_go_both_ways(rabbitmq, consume):
    """An idle connection stays, and a silent broker is noticed."""
    with tcp_proxy(rabbitmq[0].port) as proxy:
        url = f'rabbit://guest:guest@127.0.0.1:{proxy.port}'
        bus = consume(url, heartbeat_timeout_threshold=2).bus
        # The broker closes a connection that is silent for twice as long.
        time.sleep(6.0)
        assert (bus._number, bus.is_connected()) == (0, True)
        proxy.become(Mode.BLACK_HOLE)
        wait_until(lambda: not bus.is_connected())
        proxy.become(Mode.FORWARD)
        wait_until(bus.is_connected)


def test_closed_connections_leave_nothing_behind(consumer):
    """No thread, no descriptor and no memory, after many of them."""

    def in_use() -> tuple[int, int]:
        return len(os.listdir('/proc/self/fd')), threading.active_count()

    before = in_use()
    # What is imported and cached with the first ones stays.
    for _ in range(20):
        reconnect(consumer)
    memory_mb = common.memory_mb(os.getpid())
    for _ in range(100):
        reconnect(consumer)
    after = in_use()
    assert after[0] <= before[0]
    assert after[1] == before[1]
    # A connection that is kept takes 60 kB and more.
    assert common.memory_mb(os.getpid()) - memory_mb < 5
