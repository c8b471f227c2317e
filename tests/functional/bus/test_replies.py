"""Replies on RabbitMQ: published without waiting, kept until confirmed."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest

from scheduler_service.bus import replies
from tests.support import servers
from tests.support.bus_consumers import (
    cut,
    ready,
    reconnect,
    wait_until_acknowledged,
)
from tests.support.tcp_proxy import Mode, tcp_proxy
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.broker


@pytest.fixture
def declared(channel) -> Any:
    """Give a function that declares a queue for replies."""

    def declare(name: str = '', **arguments: Any) -> str:
        name = name or f'reply_{uuid.uuid4().hex}'
        channel.queue_declare(
            name, durable=False, auto_delete=False, arguments=arguments
        )
        return name

    return declare


def bodies(channel: Any, name: str, count: int) -> list[str]:
    """Wait for messages; return their bodies."""
    return [
        wait_until(lambda: channel.basic_get(name, no_ack=True)).body
        for _ in range(count)
    ]


def test_replies_are_in_their_queue_in_order(consumer, channel, declared):
    name = declared()
    start = time.monotonic()
    outcomes = [
        consumer.publish(name, str(number).encode()) for number in range(50)
    ]
    assert [each.get(timeout=LIMIT_S) for each in outcomes] == [True] * 50
    took = time.monotonic() - start
    measured = 'scheduler_service_stage_duration_seconds'
    found = consumer.health.registry.get_sample_value
    assert found(f'{measured}_count', {'stage': 'reply'}) == 50
    total = found(f'{measured}_sum', {'stage': 'reply'})
    assert 0 < total < 50 * took
    expected = [str(number) for number in range(50)]
    assert bodies(channel, name, 50) == expected


def test_a_refused_call_is_acknowledged_before_its_reply(
    consumer, send, channel, declared, topic
):
    """Its reply queue is missing: it is acknowledged nevertheless."""
    name = f'reply_{uuid.uuid4().hex}'
    send('m', _msg_id='1', _reply_q=name)
    sent = consumer.refuse(consumer.take(), b'no')
    wait_until_acknowledged(consumer)
    wait_until(consumer.bus.in_lines)
    cut(consumer)
    assert consumer.none_comes()
    assert ready(channel, topic) == 0
    declared(name)
    assert sent.get(timeout=LIMIT_S)
    assert bodies(channel, name, 1) == ['no']


def test_a_call_that_comes_again_is_refused_by_whoever_has_it(
    consumer, send, channel, declared
):
    name = declared()
    send('m', _msg_id='1', _reply_q=name)
    first = consumer.take()
    # Both are given up with the connection: neither can have been noticed.
    consumer.bus.call(lambda: cut(consumer))
    sent = consumer.refuse(first, b'lost')
    assert not sent.get(timeout=LIMIT_S)
    second = consumer.take()
    assert second.redelivered
    assert consumer.refuse(second, b'again').get(timeout=LIMIT_S)
    assert bodies(channel, name, 1) == ['again']
    # The first delivery ended with its connection.
    assert not consumer.refuse(first, b'late').get(timeout=LIMIT_S)


def test_a_call_is_acknowledged_when_its_reply_is_confirmed(
    consumer, send, channel, declared, topic
):
    name = f'reply_{uuid.uuid4().hex}'
    send('m', _msg_id='1', _reply_q=name)
    request = consumer.take()
    consumer.reply(request)
    # Its queue is missing: without an acknowledgement it comes again.
    time.sleep(0.5)
    declared(name)
    assert '"_msg_id\\":\\"1\\"' in bodies(channel, name, 1)[0]
    wait_until_acknowledged(consumer)
    reconnect(consumer)
    assert consumer.none_comes()
    assert ready(channel, topic) == 0


def test_replies_wait_for_a_missing_queue_and_keep_their_order(
    consumer, channel, declared
):
    name = f'reply_{uuid.uuid4().hex}'
    waiting = [consumer.publish(name, b'%d' % number) for number in range(5)]
    other = declared()
    # They delay no other destination, as their queue is missing until then.
    assert consumer.publish(other, b'x').get(timeout=LIMIT_S)
    time.sleep(0.6)
    declared(name)
    assert [each.get(timeout=LIMIT_S) for each in waiting] == [True] * 5
    assert sorted(bodies(channel, name, 5)) == ['0', '1', '2', '3', '4']


def test_a_reply_is_given_up_in_the_end(consume):
    consumer = consume(kombu_missing_consumer_retry_timeout=1)
    found = consumer.publish('no_such_queue', b'{}')
    assert found.get(timeout=LIMIT_S) is False
    assert consumer.bus.in_lines() == 0


def test_a_line_has_a_length(consumer, monkeypatch):
    monkeypatch.setattr(replies, '_MAX_LINE', 3)
    # None of them is tried again meanwhile.
    monkeypatch.setattr(replies, '_MAX_RETRIES_A_SECOND', 0.02)
    first = consumer.publish('no_such_queue', b'{}')
    wait_until(consumer.bus.in_lines)
    more = [consumer.publish('no_such_queue', b'{}') for _ in range(5)]
    wait_until(lambda: sum(not each.empty() for each in more) == 3)
    assert consumer.bus.in_lines() == 3
    assert first.empty()


def test_requests_are_released_when_many_replies_wait(consumer):
    """Else the prefetch would be used up."""
    released: list[int] = []
    for number in range(30):
        consumer.publish(
            f'no_such_queue_{number}',
            b'{}',
            release=lambda number=number: released.append(number),
        )
    wait_until(lambda: consumer.bus.in_lines() > 16)
    wait_until(lambda: len(set(released)) >= 13)


def test_replies_go_over_the_next_connection(consumer, channel, declared):
    name = declared()
    cut(consumer)
    wait_until(lambda: consumer.bus._number)
    outcomes = [consumer.publish(name, b'%d' % n) for n in range(20)]
    assert [each.get(timeout=LIMIT_S) for each in outcomes] == [True] * 20
    assert bodies(channel, name, 20) == [str(n) for n in range(20)]


def test_a_heartbeat_is_not_repeated(consumer):
    found = consumer.publish('no_such_queue', b'{}', repeated=False)
    assert found.get(timeout=LIMIT_S) is False
    assert consumer.bus.in_lines() == 0


def test_a_heartbeat_does_not_wait_for_a_connection(
    rabbitmq, consume, declared
):
    name = declared()
    with tcp_proxy(rabbitmq[0].port) as proxy:
        consumer = consume(f'rabbit://guest:guest@127.0.0.1:{proxy.port}')
        proxy.become(Mode.REFUSE)
        wait_until(lambda: not consumer.bus.is_connected())
        sent = consumer.publish(name, b'{}', repeated=False)
        assert sent.get(timeout=LIMIT_S) is False
        proxy.become(Mode.FORWARD)
        wait_until(consumer.bus.is_connected)
        sent = consumer.publish(name, b'{}', repeated=False)
        assert sent.get(timeout=LIMIT_S) is True


def test_replies_that_wait_for_a_connection_are_not_stuck(
    rabbitmq, consume, channel, declared
):
    """They are sent as soon as there is one, though no request comes."""
    name = declared()
    with tcp_proxy(rabbitmq[0].port) as proxy:
        consumer = consume(f'rabbit://guest:guest@127.0.0.1:{proxy.port}')
        proxy.become(Mode.REFUSE)
        wait_until(lambda: not consumer.bus.is_connected())
        consumer.publish(name, b'waits')
        time.sleep(replies.STUCK_S + 0.1)
        assert consumer.bus.stuck() == 0
        proxy.become(Mode.FORWARD)
        wait_until(consumer.bus.is_connected)
        assert bodies(channel, name, 1) == ['waits']
        assert consumer.bus.stuck() == 0


def test_replies_wait_while_the_broker_lacks_memory(
    rabbitmq, consumer, channel, declared, send
):
    """Nothing is sent then; the broker reads nothing of the connection."""
    server = rabbitmq[0]
    name = declared()
    send('m', _msg_id='1', _reply_q=name)
    request = consumer.take()
    set_limit = 'vm_memory_monitor:set_vm_memory_high_watermark'
    servers.evaluate(server, f'{set_limit}(0.000001)')
    alarms = 'rabbit_alarm:get_alarms()'
    try:
        # It blocks connections that publish once it has noticed.
        wait_until(lambda: 'memory' in servers.evaluate(server, alarms))
        first = consumer.publish(name, b'first')
        wait_until(lambda: consumer.bus._connection.blocked)
        consumer.reply(request)
        later = consumer.publish(name, b'later')
        wait_until(consumer.bus.stuck)
        assert later.empty()
    finally:
        servers.evaluate(server, f'{set_limit}(0.6)')
    assert first.get(timeout=LIMIT_S)
    assert later.get(timeout=LIMIT_S)
    assert consumer.bus.stuck() == 0
    assert len(bodies(channel, name, 3)) == 3


def test_casts_go_to_an_exchange_that_is_declared(consumer, channel, declared):
    exchange = f'e_{uuid.uuid4().hex}'
    sent = consumer.publish('e/t', b'lost', exchange=exchange, key='t')
    # Like a cast of any service it is dropped if no queue is bound.
    assert sent.get(timeout=LIMIT_S)
    name = declared()
    channel.queue_bind(name, exchange, 't')
    sent = consumer.publish('e/t', b'cast', exchange=exchange, key='t')
    assert sent.get(timeout=LIMIT_S)
    assert bodies(channel, name, 1) == ['cast']
    channel.exchange_delete(exchange)
    # The exchange is declared again, and replies go on meanwhile.
    sent = consumer.publish('e/t', b'cast', exchange=exchange, key='t')
    assert consumer.publish(name, b'reply').get(timeout=LIMIT_S)
    assert sent.get(timeout=LIMIT_S)


def test_an_exchange_of_another_kind_is_used(consumer, channel, declared):
    exchange, name = f'e_{uuid.uuid4().hex}', declared()
    channel.exchange_declare(exchange, 'direct', auto_delete=False)
    channel.queue_bind(name, exchange, 't')
    sent = consumer.publish('e/t', b'cast', exchange=exchange, key='t')
    assert sent.get(timeout=LIMIT_S)
    assert bodies(channel, name, 1) == ['cast']
