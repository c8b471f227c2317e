"""The queues of a daemon on RabbitMQ: two shared queues, and its own.

The shared queue has the name of the topic and is permanent. So is the presence
queue, which gets no messages: a daemon consumes from both or from none, so the
number of its consumers shows whether other daemons consume. The daemon's own
queue gets messages to this server alone. Its name is new with each start, and
the broker deletes it after ``[oslo_messaging_rabbit]
rabbit_transient_queues_ttl`` seconds without a consumer. An orderly stop
deletes it at once.

A listener's queues are declared by the main thread, before the polling thread
has the connection.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import kombu
import oslo_messaging
import urllib3
from amqp.exceptions import NotFound, PreconditionFailed
from oslo_messaging._drivers import common
from oslo_messaging._drivers import impl_rabbit as stock

from scheduler_service import errors
from scheduler_service.rpc import transport

LOG = logging.getLogger(__name__)
# Of a queue or an exchange, in bytes.
LONGEST_NAME = 255


def is_name(text: str) -> bool:
    """Whether the text is a valid name of a queue or an exchange."""
    return 0 < len(text.encode(errors='replace')) <= LONGEST_NAME


def presence_queue(topic: str) -> str:
    """Return the presence queue of a topic."""
    return f'{topic}.consuming'


def declare(conn: Any, exchange: str, target: Any, callback: Any) -> str:
    """Declare the queues and exchanges that a server consumes from.

    A fanout exchange is declared only for a target with ``fanout``: its name
    does not include *exchange*, so that another service on the virtual host
    may use the same name.

    :param conn: oslo.messaging's connection of a listener
    :return: the name of the daemon's own queue
    :raises ConfigurationError: the queues or the exchange exist already, and
        are of another kind
    """
    with _kinds_checked():
        conn.declare_consumer(
            shared_consumer(conn, exchange, target.topic, callback)
        )
        conn.declare_consumer(
            shared_consumer(
                conn, exchange, presence_queue(target.topic), callback
            )
        )
        own = _own_consumer(conn, exchange, target, callback)
        conn.declare_consumer(own)
        if target.fanout:
            conn.declare_fanout_consumer(target.topic, callback)
    name: str = own.queue_name
    return name


def delete(conn: Any, name: str) -> None:
    """Delete a daemon's own queue, if the broker can be reached.

    Else the broker deletes the queue later. Its consumer is cancelled first:
    the broker would notify it of the deletion, and the connection, which is
    closed next, would take that for an error and stay open.
    """
    if conn.channel is None or not conn.connection.connected:
        return
    try:
        for consumer, tag in conn._consumers.items():
            if consumer.queue_name == name:
                consumer.cancel(tag)
        conn.channel.queue_delete(name)
    except Exception as error:
        LOG.info('The queue %s was not deleted: %s', name, error)


def of_another_kind(
    refusal: PreconditionFailed,
) -> errors.ConfigurationError:
    """Return the error for a queue or an exchange with other arguments."""
    return errors.ConfigurationError(
        'RabbitMQ has a queue or an exchange of this name already, of '
        f'another kind ({refusal.reply_text}): set the options of '
        '[oslo_messaging_rabbit] on queues as they were when it was '
        'made, choose another [scheduler] topic or exchange, or delete '
        'it when no service uses it'
    )


def shared_consumer(
    conn: Any, exchange: str, topic: str, callback: Any = None
) -> Any:
    """Return the consumer of the queue that daemons share."""
    return stock.Consumer(
        exchange_name=exchange,
        queue_name=topic,
        routing_key=topic,
        callback=callback,
        **_arguments(conn),
    )


def _arguments(conn: Any) -> dict[str, Any]:
    """Return the arguments of both queues from the driver's options."""
    return {
        'type': 'topic',
        'durable': conn.durable,
        'exchange_auto_delete': conn.amqp_auto_delete,
        'queue_auto_delete': conn.amqp_auto_delete,
        'rabbit_ha_queues': conn.rabbit_ha_queues,
        'enable_cancel_on_failover': conn.enable_cancel_on_failover,
        'rabbit_quorum_queue': conn.rabbit_quorum_queue,
        'rabbit_quorum_queue_config': conn.rabbit_quorum_queue_config,
    }


def _own_consumer(conn: Any, exchange: str, target: Any, callback: Any) -> Any:
    """Return the consumer of messages to a single server."""
    topic = f'{target.topic}.{target.server}'
    return stock.Consumer(
        exchange_name=exchange,
        queue_name=f'{topic}.{uuid.uuid4().hex}',
        routing_key=topic,
        callback=callback,
        rabbit_queue_ttl=conn.rabbit_transient_queues_ttl,
        **_arguments(conn),
    )


@contextlib.contextmanager
def _kinds_checked() -> Iterator[None]:
    """Translate the broker's error for other arguments of a queue.

    :raises ConfigurationError: with the broker's text, and advice
    """
    try:
        yield
    except oslo_messaging.MessageDeliveryFailure as fault:
        refusal = fault.__context__
        if not isinstance(refusal, PreconditionFailed):
            raise
        raise of_another_kind(refusal) from None


# The port for messages, and the usual offset of the management interface's.
_PORT, _HIGHER = 5672, 10_000
_MANAGEMENT_S = 5.0
_FOUND, _NOT_FOUND = 200, 404


def look(bus: Any, exchange: str, topic: str) -> None:
    """Compare existing queues and exchanges with a daemon's declarations.

    :raises ConfigurationError: a queue or an exchange is of another kind
    :raises MessageDeliveryFailure: the broker does not accept a connection
    """
    driver = bus._driver
    if not isinstance(driver, stock.RabbitDriver):
        return
    transport.connect(bus)
    with driver._get_connection(common.PURPOSE_SEND) as used:
        wanted = shared_consumer(used.connection, exchange, topic)
        # The library's thread for heartbeats reads from its own connection.
        conn = used.connection.connection.clone()
    with conn:
        try:
            _compare(conn, wanted)
        except PreconditionFailed as refusal:
            raise of_another_kind(refusal) from None


def _compare(conn: Any, wanted: Any) -> None:
    """Declare the queue and the exchange again, where they exist.

    :param wanted: the consumer of the shared queue
    :raises PreconditionFailed: the arguments differ
    """
    declared, topic = wanted.exchange, wanted.queue_name
    if _exists(conn, lambda channel: declared(channel).declare(passive=True)):
        with conn.channel() as channel:
            declared(channel).declare()
    if not _exists(
        conn, lambda channel: channel.queue_declare(topic, passive=True)
    ):
        return
    queue = kombu.Queue(
        topic,
        durable=wanted.durable,
        auto_delete=wanted.queue_auto_delete,
        queue_arguments=wanted.queue_arguments,
    )
    with conn.channel() as channel:
        queue(channel).queue_declare()


def _exists(conn: Any, ask: Any) -> bool:
    """Whether a passive declaration succeeds, on a channel of its own."""
    try:
        with conn.channel() as channel:
            ask(channel)
    except NotFound:
        return False
    return True


def time_to_live(address: Any, queue: str) -> int | None:
    """Return after how long messages of a queue expire, in milliseconds.

    A policy sets the time, which only the management interface shows.

    :param address: of the broker, with user, password and virtual host
    :return: None: they never expire
    :raises LookupError: the queue does not exist, or the interface does not
        answer
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
    # Without a policy the value is null, or an empty list.
    policy = dict(found.get('effective_policy_definition') or {})
    return policy.get('message-ttl')
