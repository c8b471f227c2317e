"""Looks at queues and exchange on RabbitMQ, and changes nothing there.

What does not exist is not declared; what exists is declared as a daemon would
declare it, which only compares the arguments.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import quote

import kombu
import urllib3
from amqp.exceptions import NotFound, PreconditionFailed
from oslo_messaging._drivers import common
from oslo_messaging._drivers import impl_rabbit as stock

from scheduler_service.rpc import queues, transport

OLD_TOPIC = 'scheduler'
# The port of the broker's management interface is higher by so much, as a
# rule, than that for messages.
_PORT, _HIGHER = 5672, 10_000
_MANAGEMENT_S = 5.0
_FOUND, _NOT_FOUND = 200, 404


class QueueState(NamedTuple):
    """How many messages wait in a queue, and how many consume from it."""

    messages: int
    consumers: int


def look(bus: Any, exchange: str, topic: str) -> QueueState | None:
    """Compare what exists with what a daemon would declare.

    :return: the queue of the topic that was the default; None: it is not
        there, or it is *topic*, or the bus has no queues of this kind
    :raises ConfigurationError: something is of another kind
    :raises MessageDeliveryFailure: the broker does not accept a connection
    """
    driver = bus._driver
    if not isinstance(driver, stock.RabbitDriver):
        return None
    transport.connect(bus)
    with driver._get_connection(common.PURPOSE_SEND) as used:
        wanted = queues.shared_consumer(used.connection, exchange, topic)
        # The library's thread for heartbeats reads from its own connection.
        conn = used.connection.connection.clone()
    with conn:
        try:
            _compare(conn, wanted)
        except PreconditionFailed as refusal:
            raise queues.of_another_kind(refusal) from None
        return None if topic == OLD_TOPIC else _state(conn, OLD_TOPIC)


def _compare(conn: Any, wanted: Any) -> None:
    """Declare what exists already.

    :param wanted: the consumer of the shared queue
    :raises PreconditionFailed: it has other arguments
    """
    declared, topic = wanted.exchange, wanted.queue_name
    if _exists(conn, lambda channel: declared(channel).declare(passive=True)):
        with conn.channel() as channel:
            declared(channel).declare()
    if _state(conn, topic) is None:
        return
    queue = kombu.Queue(
        topic,
        durable=wanted.durable,
        auto_delete=wanted.queue_auto_delete,
        queue_arguments=wanted.queue_arguments,
    )
    with conn.channel() as channel:
        queue(channel).queue_declare()


def _state(conn: Any, queue: str) -> QueueState | None:
    """Return the state of a queue; None: there is no such queue."""
    found: list[QueueState] = []

    def ask(channel: Any) -> None:
        state = channel.queue_declare(queue, passive=True)
        found.append(QueueState(state.message_count, state.consumer_count))

    return found[0] if _exists(conn, ask) else None


def _exists(conn: Any, ask: Any) -> bool:
    """Whether the broker knows what is asked for, on a channel of its own."""
    try:
        with conn.channel() as channel:
            ask(channel)
    except NotFound:
        return False
    return True


def time_to_live(address: Any, queue: str) -> int | None:
    """Return after how long messages of a queue expire, in milliseconds.

    A policy says so, which only the management interface of the broker shows.

    :param address: of the broker, with user, password and virtual host
    :return: None: they never do
    :raises LookupError: the queue is not there, or nothing can be asked
    """
    host = address.hosts[0]
    port = (host.port or _PORT) + _HIGHER
    path = '/'.join(
        quote(one, '') for one in (address.virtual_host or '/', queue)
    )
    try:
        answer = urllib3.request(
            'GET',
            f'http://{host.hostname}:{port}/api/queues/{path}',
            headers=urllib3.make_headers(
                basic_auth=f'{host.username}:{host.password}'
            ),
            timeout=_MANAGEMENT_S,
            retries=False,
        )
        found = answer.json()
    except (urllib3.exceptions.HTTPError, ValueError):
        raise LookupError(
            'the management interface of the broker does not answer'
        ) from None
    if answer.status == _NOT_FOUND:
        raise LookupError(f'there is no queue {queue} yet')
    if answer.status != _FOUND:
        raise LookupError(f'{host.username} may not look at queues')
    # Without a policy it is null, or an empty list.
    policy = dict(found.get('effective_policy_definition') or {})
    return policy.get('message-ttl')
