"""The driver for RabbitMQ: what it takes, and which replies it sends."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import kombu
import pytest
from oslo_messaging._drivers import amqpdriver

from scheduler_service.rpc import rabbit, transport
from tests.support import clouds, servers
from tests.support.services import new_conf
from tests.support.tcp_proxy import Mode, tcp_proxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.broker
Publish = Callable[..., None]


@pytest.fixture
def topic() -> str:
    return f't{uuid.uuid4().hex[:8]}'


@pytest.fixture
def channel(rabbitmq) -> Iterator[Any]:
    """A channel of somebody else."""
    url = rabbitmq[1].replace('rabbit://', 'amqp://')
    with kombu.Connection(url) as connection:
        yield connection.channel()


@contextlib.contextmanager
def driver_of(url: str, **options: Any) -> Iterator[Any]:
    """Give the driver of a bus, with options of it."""
    conf = new_conf()
    bus = transport.for_server(conf, url)
    for name, value in options.items():
        conf.set_override(name, value, 'oslo_messaging_rabbit')
    found = bus._driver
    yield found
    # This thread's connection for replies goes back, and is closed as well.
    found._local.conn = None
    clouds.clean([bus])


@contextlib.contextmanager
def listening(driver: Any, topic: str) -> Iterator[Any]:
    """Give what takes the requests of the topic; the test polls it."""
    target = transport.target('openstack', topic, 's')
    found = driver.listen(target, 1, None)._poll_style_listener
    yield found
    found.cleanup()


@pytest.fixture
def driver(rabbitmq) -> Iterator[Any]:
    with driver_of(rabbitmq[1]) as found:
        yield found


@pytest.fixture
def listener(driver, topic) -> Iterator[Any]:
    with listening(driver, topic) as found:
        yield found


@pytest.fixture
def publish(channel, topic, listener) -> Publish:
    """Give a function that publishes a cast to the topic."""
    return publisher(channel, topic)


def publisher(channel: Any, topic: str) -> Publish:
    """Return a function that publishes a cast to a topic."""
    producer = kombu.Producer(channel)

    def send(method: str, unique_id: str = '') -> None:
        message = {
            'method': method,
            '_unique_id': unique_id or uuid.uuid4().hex,
        }
        producer.publish(
            {'oslo.version': '2.0', 'oslo.message': json.dumps(message)},
            exchange='openstack',
            routing_key=topic,
        )

    return send


def take(listener: Any) -> Any:
    """Wait for a message, and return it."""
    (message,) = wait_until(lambda: listener.poll(0.1), 30)
    return message


def method_of(message: Any) -> Any:
    return message.message['method']


def poll_some_more(listener: Any) -> list[Any]:
    """Return what comes although nothing should."""
    found = []
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        found += listener.poll(0.1)
    return found


def ready(channel: Any, queue: str) -> int:
    """Return how many messages a queue has for whoever comes next."""
    found = channel.queue_declare(queue, passive=True)
    return int(found.message_count)


def declare(channel: Any, queue: str) -> None:
    """Declare a queue for replies."""
    channel.queue_declare(queue, durable=False, auto_delete=False)


def declared(channel: Any) -> str:
    """Return a new queue for replies."""
    name = f'reply_{uuid.uuid4().hex}'
    declare(channel, name)
    return name


def body_of(channel: Any, queue: str) -> Any:
    return wait_until(lambda: channel.basic_get(queue, no_ack=True)).body


def test_messages_are_left_to_others_when_many_are_worked_on(
    listener, publish, channel, topic
):
    for _ in range(140):
        publish('ping')
    taken = [take(listener) for _ in range(128)]
    assert poll_some_more(listener) == []
    assert ready(channel, topic) == 12
    taken[0].acknowledge()
    assert method_of(take(listener)) == 'ping'


def test_a_message_is_acknowledged_on_time_when_no_other_comes(
    listener, publish, monkeypatch
):
    """Else the prefetch would be used up by messages whose work is done."""
    monkeypatch.setattr(rabbit, '_LONG_POLL_S', 60.0)
    publish('ping')
    message = take(listener)
    found: list[Any] = []
    poller = threading.Thread(target=lambda: found.append(take(listener)))
    poller.start()
    message.acknowledge()
    wait_until(lambda: message.message._raw_message.acknowledged, 20)
    publish('last')
    poller.join(30)
    assert [method_of(one) for one in found] == ['last']


def test_waiting_costs_little_when_no_message_comes(listener, monkeypatch):
    """Messages are waited for, not looked for again and again."""
    real, looks = amqpdriver.AMQPListener.poll, []

    def poll(*about: Any) -> Any:
        looks.append(1)
        return real(*about)

    monkeypatch.setattr(amqpdriver.AMQPListener, 'poll', poll)
    until, used = time.monotonic() + 1.0, time.thread_time()
    while time.monotonic() < until:
        assert listener.poll() == []
    assert time.thread_time() - used < 0.1
    # The base class has a look each quarter of a second.
    assert len(looks) < 10


def test_a_message_is_dropped_when_it_had_its_reply(
    listener, publish, channel, topic
):
    """Its acknowledgement may be lost together with a connection."""
    for text in ('same', 'same', 'other'):
        publish('ping', text)
    first, second = take(listener), take(listener)
    # The second came before the reply to the first.
    assert first.unique_id == second.unique_id == 'same'
    assert take(listener).unique_id == 'other'
    first.acknowledge()
    second.acknowledge()
    publish('again', 'same')
    publish('last')
    last = take(listener)
    assert method_of(last) == 'last'
    last.acknowledge()
    assert poll_some_more(listener) == []


def test_a_message_is_taken_again_when_it_was_returned(listener, publish):
    publish('ping', 'same')
    take(listener).requeue()
    again = take(listener)
    assert (again.unique_id, again.redelivered) == ('same', True)


def test_nothing_but_ping_is_taken_when_the_driver_pauses(
    driver, listener, publish, channel, topic
):
    driver.pause()
    publish('select_destinations')
    publish('ping')
    assert method_of(take(listener)) == 'ping'
    assert poll_some_more(listener) == []
    # Whatever comes goes to daemons that do not pause.
    assert channel.queue_declare(topic, passive=True).consumer_count == 0
    driver.resume()
    assert method_of(take(listener)) == 'select_destinations'


def test_a_ping_is_answered_when_it_was_returned_and_the_driver_pauses(
    driver, listener, publish, channel, topic
):
    """Redelivered requests wait for the database, of which pings tell."""
    driver.pause()
    assert poll_some_more(listener) == []
    publish('ping')
    returned = wait_until(lambda: channel.basic_get(topic))
    channel.basic_reject(returned.delivery_tag, requeue=True)
    message = take(listener)
    assert method_of(message) == 'ping'
    assert message.message._raw_message.delivery_info['redelivered']
    assert not message.redelivered


def test_what_is_held_is_returned_when_another_daemon_consumes(
    driver, listener, publish, channel, topic
):
    driver.pause()
    publish('select_destinations')
    wait_until(lambda: not listener.poll(0.1) and listener._shared._held, 30)
    # However often it looks, it does not take itself for another one.
    until = time.monotonic() + 2.0
    while time.monotonic() < until:
        assert listener.poll(0.1) == []
        assert len(listener._shared._held) == 1
    channel.basic_consume(f'{topic}.consuming', no_ack=True)
    wait_until(
        lambda: not listener.poll(0.1) and not listener._shared._held, 30
    )
    wait_until(lambda: ready(channel, topic) == 1)


def test_what_the_engine_gave_back_is_worked_on_when_the_driver_resumes(
    driver, listener, publish, channel, topic
):
    publish('select_destinations')
    message = take(listener)
    driver.pause()
    message.requeue()
    assert poll_some_more(listener) == []
    assert message.settled
    assert ready(channel, topic) == 0
    driver.resume()
    assert take(listener) is message
    assert (message.redelivered, message.settled) == (True, False)


def test_what_is_held_is_forgotten_when_its_connection_is_lost(
    driver, listener, publish
):
    """The broker gives it to whoever consumes, so it comes once."""
    publish('select_destinations')
    message = take(listener)
    driver.pause()
    message.requeue()
    assert poll_some_more(listener) == []
    listener.conn.connection.connection.close()
    driver.resume()
    again = take(listener)
    assert again is not message
    assert again.unique_id == message.unique_id
    assert poll_some_more(listener) == []


def test_a_message_stays_when_it_was_returned_half_as_often_as_allowed(
    quorum_bus, topic
):
    """A quorum queue drops what comes back more often than its limit says."""
    url = quorum_bus.replace('rabbit://', 'amqp://')
    limited = {**clouds.DURABLE, 'rabbit_quorum_delivery_limit': 4}
    with (
        kombu.Connection(url) as connection,
        driver_of(quorum_bus, **limited) as driver,
        listening(driver, topic) as listener,
    ):
        channel = connection.channel()
        channel.basic_consume(f'{topic}.consuming', no_ack=True)
        publisher(channel, topic)('select_destinations')
        for returns in range(2):
            message = take(listener)
            assert message.returns == returns
            driver.pause()
            message.requeue()
            wait_until(
                lambda: not listener.poll(0.1) and ready(channel, topic) == 1,
                30,
            )
            driver.resume()
        message = take(listener)
        driver.pause()
        message.requeue()
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            assert listener.poll(0.1) == []
            assert ready(channel, topic) == 0
        driver.resume()
        assert take(listener) is message


def test_a_listener_pauses_when_the_driver_paused_before(driver, topic):
    driver.pause()
    target = transport.target('openstack', topic, 's')
    late = driver.listen(target, 1, None)._poll_style_listener
    assert late.paused
    driver.resume()
    assert not late.paused
    late.cleanup()
    later = driver.listen(target, 1, None)._poll_style_listener
    assert not later.paused
    later.cleanup()


def test_driver_is_connected_while_every_listener_is(
    driver, listener, monkeypatch
):
    assert driver.is_connected() is True
    listener.conn.connection.connection.close()
    assert driver.is_connected() is False
    # The poller makes a lost connection again.
    wait_until(lambda: listener.poll(0.1) or driver.is_connected(), 30)
    monkeypatch.setattr(rabbit, '_CONNECT_S', 0.0)
    driver._connecting_since = time.monotonic() - 1.0
    assert driver.is_connected() is False


def test_replies_are_left_to_the_publisher_while_the_connection_is_lost(
    driver, channel
):
    queue = declared(channel)
    assert driver.try_publish(queue, b'"five"')
    driver._local.conn.connection.connection.close()
    assert driver.try_publish(queue, b'"six"') is False
    driver.publish_reply(queue, b'"six"')
    assert driver.try_publish(queue, b'"seven"') is True
    found = [body_of(channel, queue) for _ in range(3)]
    assert found == ['"five"', '"six"', '"seven"']


@pytest.mark.parametrize(
    ('unacknowledged', 'seconds'),
    [(0, 0.0), (1, 0.02), (96, 0.02), (97, 0.001), (128, 0.001)],
)
def test_acknowledgements_wait_less_when_the_prefetch_is_nearly_used_up(
    listener, unacknowledged, seconds
):
    listener._unacknowledged = unacknowledged
    assert listener._ack_wait_s == seconds


def test_reply_is_in_its_queue_when_it_was_published_at_once(driver, channel):
    queue = declared(channel)
    assert driver.try_publish(queue, b'"one"')
    assert body_of(channel, queue) == '"one"'


def test_no_reply_is_said_to_be_sent_when_its_queue_is_missing(
    driver, channel
):
    """Also not while the queue is not even tried."""
    for _ in range(3):
        assert driver.try_publish('no-such-queue', b'{}') is False
    # It costs nobody else anything.
    queue = declared(channel)
    assert driver.try_publish(queue, b'"two"')
    assert body_of(channel, queue) == '"two"'


def test_queue_is_left_alone_for_a_moment_when_it_refused(
    driver, channel, monkeypatch
):
    monkeypatch.setattr(rabbit, '_PAUSE_S', 60.0)
    queue = f'reply_{uuid.uuid4().hex}'
    assert not driver.refuses(queue)
    assert not driver.try_publish(queue, b'{}')
    assert driver.refuses(queue)
    declare(channel, queue)
    assert not driver.try_publish(queue, b'{}')
    assert ready(channel, queue) == 0


def test_queue_is_tried_again_when_the_moment_is_over(
    driver, channel, monkeypatch
):
    monkeypatch.setattr(rabbit, '_PAUSE_S', 0.0)
    queue = f'reply_{uuid.uuid4().hex}'
    assert not driver.try_publish(queue, b'{}')
    declare(channel, queue)
    assert driver.try_publish(queue, b'"three"')
    assert body_of(channel, queue) == '"three"'


def test_refusals_are_forgotten_when_too_many_queues_refused(
    driver, channel, monkeypatch
):
    monkeypatch.setattr(rabbit, '_PAUSE_S', 60.0)
    monkeypatch.setattr(rabbit, '_MAX_REFUSING', 2)
    names = [f'reply_{uuid.uuid4().hex}' for _ in range(3)]
    for name in names[:2]:
        assert not driver.try_publish(name, b'{}')
    declare(channel, names[0])
    # Two are known, so that the first is not tried.
    assert not driver.try_publish(names[0], b'{}')
    assert not driver.try_publish(names[2], b'{}')
    assert driver.try_publish(names[0], b'"four"')
    assert body_of(channel, names[0]) == '"four"'


@pytest.mark.parametrize(
    ('lost', 'reason'),
    [
        (Mode.REFUSE, 'Connection refused'),
        # The proxy takes connections, so that it is the broker that is late.
        (Mode.BLACK_HOLE, 'timed out'),
    ],
)
def test_why_a_broker_is_lost_is_known(rabbitmq, topic, lost, reason):
    with tcp_proxy(rabbitmq[0].port) as proxy:
        where = f'127.0.0.1:{proxy.port}'
        bus = transport.for_server(new_conf(), f'rabbit://guest:guest@{where}')
        driver = bus._driver
        target = transport.target('openstack', topic, 's')
        listener = driver.listen(target, 1, None)._poll_style_listener
        assert (driver.is_connected(), driver.fault()) == (True, '')
        proxy.become(Mode.REFUSE)
        wait_until(lambda: not (listener.poll() or driver.is_connected()))
        # At once, before it was tried to connect again.
        first = driver.fault()
        assert first.startswith(f'{where}: ')
        assert first != f'{where}: '
        if lost is not Mode.REFUSE:
            proxy.become(lost)
        wait_until(lambda: listener.poll() or reason in driver.fault(), 30)
        assert driver.fault().startswith(f'{where}: ')
        assert 'guest' not in first + driver.fault()
        proxy.become(Mode.FORWARD)
        wait_until(lambda: listener.poll() or driver.is_connected(), 30)
        assert driver.fault() == ''
        listener.cleanup()
        clouds.clean([bus])


def test_a_password_that_is_refused_later_is_told_and_not_shown(
    rabbitmq, topic
):
    server = rabbitmq[0]

    def set_password(password: str, change: str = 'change_password') -> None:
        function = f'{servers.USERS}:{change}'
        servers.call(server, function, topic, password, 'guest')

    set_password('hunter2', 'add_user')
    servers.permit(server, topic)
    with tcp_proxy(server.port) as proxy:
        bus = transport.for_server(
            new_conf(), f'rabbit://{topic}:hunter2@127.0.0.1:{proxy.port}'
        )
        driver = bus._driver
        target = transport.target('openstack', topic, 's')
        listener = driver.listen(target, 1, None)._poll_style_listener
        set_password('other')
        proxy.become(Mode.REFUSE)
        wait_until(lambda: not (listener.poll() or driver.is_connected()))
        proxy.become(Mode.FORWARD)
        refused = 'ACCESS_REFUSED'
        wait_until(lambda: listener.poll() or refused in driver.fault(), 30)
        assert 'hunter2' not in driver.fault()
        set_password('hunter2')
        wait_until(lambda: listener.poll() or driver.is_connected(), 30)
        listener.cleanup()
        clouds.clean([bus])
    servers.call(server, f'{servers.USERS}:delete_user', topic, 'guest')
