"""The queues of a daemon on RabbitMQ: those that are shared, and its own.

The shared queue has the name of the topic and stays for ever. So does another
of the same kind, to which nothing is sent: a daemon consumes from both or from
none, and sees there whether others do. The daemon's
own queue takes what is sent to this server alone. Its name is new with each
start, and the broker deletes it when nobody has consumed from it for
``[oslo_messaging_rabbit] rabbit_transient_queues_ttl`` seconds: a restart
leaves nothing behind. An orderly stop deletes it at once.

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
    """Whether a queue or an exchange of the broker can have a name."""
    return 0 < len(text.encode(errors='replace')) <= LONGEST_NAME


def presence_queue(topic: str) -> str:
    """Return the queue whose consumers consume from that of a topic."""
    return f'{topic}.consuming'


def declare(conn: Any, exchange: str, target: Any, callback: Any) -> str:
    """Declare what a server consumes from.

    A fanout exchange is declared for a target with ``fanout`` alone: its name
    has no part of *exchange* in it, so that another service on the virtual
    host may use one of the same name.

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

    Else the broker does so, after its time. Its consumer is cancelled first:
    the broker would tell it of the deletion, and the connection, which is
    closed next, takes that for an error and stays open.
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
    """Return the error on a queue or an exchange with other arguments."""
    return errors.ConfigurationError(
        'RabbitMQ has a queue or an exchange of this name already, of '
        f'another kind ({refusal.reply_text}): set the options of '
        '[oslo_messaging_rabbit] on queues as they were when it was '
        'made, choose another [scheduler] topic or exchange, or delete '
        'it when nothing uses it'
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
    """Return what both queues have by the options of the driver."""
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
    """Return the consumer of what is sent to one server alone."""
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
    """Say what to do where a queue exists with other arguments.

    :raises ConfigurationError: with what the broker says
    """
    try:
        yield
    except oslo_messaging.MessageDeliveryFailure as fault:
        refusal = fault.__context__
        if not isinstance(refusal, PreconditionFailed):
            raise
        raise of_another_kind(refusal) from None


# The port of the broker's management interface is higher by so much, as a
# rule, than that for messages.
_PORT, _HIGHER = 5672, 10_000
_MANAGEMENT_S = 5.0
_FOUND, _NOT_FOUND = 200, 404


def look(bus: Any, exchange: str, topic: str) -> None:
    """Compare what exists with what a daemon would declare.

    :raises ConfigurationError: something is of another kind
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
    """Declare what exists already.

    :param wanted: the consumer of the shared queue
    :raises PreconditionFailed: it has other arguments
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
