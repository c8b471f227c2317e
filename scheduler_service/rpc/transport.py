"""Builds transports from the options, and prepares oslo.messaging for them.

The main thread calls the functions at the start. Any thread may then use a
transport.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import kombu
import oslo_messaging
import urllib3
from oslo_concurrency import lockutils
from oslo_config import cfg
from oslo_messaging import Target as Target
from oslo_messaging import TransportURL, opts

from scheduler_service import errors
from scheduler_service.bus import connection, options
from scheduler_service.bus.consumer import RabbitConsumer
from scheduler_service.bus.inproc import InprocConsumer
from scheduler_service.bus.options import GROUP, RabbitOptions
from scheduler_service.bus.wire import Consumer, Request
from scheduler_service.conf import effective
from scheduler_service.engine.health import Health

EXCEPTIONS = ['scheduler_service.errors']
RABBIT = 'rabbit'
_INPROC = 'inproc'
# A bus of the process alone.
NO_BROKER = f'{_INPROC}://'
# oslo.messaging registers these on cfg.CONF alone, and reads them from the
# object that it gets. Not every release has both.
_GLOBAL_GROUPS = 'oslo_messaging_tracing', 'oslo_messaging_metrics'
_NOTIFICATIONS = 'oslo_messaging_notifications'
# The levels of our notifications.
_LEVELS = 'info', 'error'
# After how many seconds the broker deletes the reply queue of a command that
# has ended.
_COMMAND_QUEUE_TTL_S = 60


def prepare(conf: Any) -> None:
    """Register the options of oslo.messaging on *conf*.

    Some it registers on cfg.CONF alone, and others when they are used.
    """
    conf.register_opts(dict(opts.list_opts())[None])
    options.register(conf)
    for group, option in effective.registered(cfg.CONF):
        if group in _GLOBAL_GROUPS:
            conf.register_opt(option, group=group)


def for_client(conf: Any, url: str | None = None) -> Any:
    """Return a transport for calls and casts.

    :raises ConfigurationError: the queue manager has no folder for its lock
    """
    _prepare_driver(conf, url)
    return oslo_messaging.get_rpc_transport(
        conf, url=url, allowed_remote_exmods=EXCEPTIONS
    )


def for_command(conf: Any) -> Any:
    """Return a transport for a process that makes one call and ends.

    The queue manager is off, whatever the options say: it names the reply
    queue by machine, program and a counter that starts again in each process
    group. Two commands at a time would read each other's replies, and its
    lock and counter files may belong to another user.
    """
    options.register(conf)
    conf.set_override('use_queue_manager', False, GROUP)
    conf.set_override(
        'rabbit_transient_queues_ttl', _COMMAND_QUEUE_TTL_S, GROUP
    )
    return for_client(conf)


def address(conf: Any, url: str | None = None) -> Any:
    """Return the address of the broker.

    :param url: in place of the option's
    :raises ConfigurationError: the URL is invalid, or has no driver
    """
    try:
        parsed = TransportURL.parse(conf, url)
    except (oslo_messaging.InvalidTransportURL, ValueError):
        # The library's message may include the password.
        raise errors.ConfigurationError(
            '[DEFAULT] transport_url is not an address such as '
            'rabbit://USER:PASSWORD@HOST:5672/VHOST'
        ) from None
    if parsed.transport not in (RABBIT, _INPROC):
        raise errors.ConfigurationError(
            f'[DEFAULT] transport_url: there is no driver {parsed.transport}, '
            f'only {RABBIT} and {_INPROC}'
        )
    return parsed


def connect(conf: Any) -> None:
    """Connect to the broker; a call would try for ever.

    :raises ConfigurationError: the broker refuses the login
    :raises MessageDeliveryFailure: the broker does not accept a connection
    """
    settings = rabbit(conf)
    if settings is not None:
        with connection.connected(settings):
            pass


def look(conf: Any, exchange: str, topic: str, url: str | None = None) -> None:
    """Compare existing queues and exchanges with a daemon's declarations.

    :param url: of the bus, in place of the option's
    :raises ConfigurationError: a queue or an exchange is of another kind, or
        the broker refuses the login
    :raises MessageDeliveryFailure: the broker does not accept a connection
    """
    settings = rabbit(conf, url)
    if settings is None:
        return
    queue = settings.shared_queue(exchange, topic)
    with connection.connected(settings) as conn:
        for entity in (queue.exchange, queue):
            if conn.find(entity) is not None:
                conn.declare_alone(entity)


def unread_notifications(conf: Any) -> dict[str, int]:
    """Return how many notifications wait in queues without a consumer.

    :return: by queue; empty where none are published
    :raises ConfigurationError: the broker refuses the login
    :raises MessageDeliveryFailure: the broker does not accept a connection
    """
    if not publishes(conf):
        return {}
    group = conf[_NOTIFICATIONS]
    settings = rabbit(conf, group.transport_url)
    if settings is None:
        return {}
    names = [f'{topic}.{level}' for topic in group.topics for level in _LEVELS]
    with connection.connected(settings) as conn:
        queues = [conn.find(kombu.Queue(name)) for name in names]
    return {
        queue.queue: queue.message_count
        for queue in queues
        if queue and queue.message_count and not queue.consumer_count
    }


def publishes(conf: Any) -> bool:
    """Whether notifications are published; their options get registered."""
    conf.register_opts(
        dict(opts.list_opts())[_NOTIFICATIONS], group=_NOTIFICATIONS
    )
    return not all(name == 'noop' for name in conf[_NOTIFICATIONS].driver)


def new_consumer(
    conf: Any,
    url: str | None,
    target: Any,
    take: Callable[[Request], None],
    health: Health,
) -> Consumer:
    """Return a consumer of the requests to a server, not started yet.

    :param target: exchange, topic and name of the server; with ``fanout`` it
        also gets casts to all servers of the topic
    :param take: called with each request, on the consumer's thread
    :raises ConfigurationError: an option cannot be used
    """
    settings = rabbit(conf, url)
    if settings is None:
        topic = f'{target.exchange}/{target.topic}'
        names = f'{topic}.{target.server}', topic
        exchange = conf.control_exchange
        parsed, on_end = address(conf, url), health.vital_thread_ended
        return InprocConsumer(parsed, exchange, names, take, on_end)
    settings.log_unused()
    return RabbitConsumer(settings, target, take, health)


def rabbit(conf: Any, url: str | None = None) -> RabbitOptions | None:
    """Return the options of the broker; None: the bus has none.

    :param url: of the bus, in place of the option's
    :raises ConfigurationError: an option cannot be used
    """
    prepare(conf)
    parsed = address(conf, url)
    return RabbitOptions(conf, parsed) if parsed.transport == RABBIT else None


def for_notifications(conf: Any, url: str | None = None) -> Any:
    """Return a transport for notifications.

    :raises ConfigurationError: the queue manager has no folder for its lock
    """
    _prepare_driver(conf, url)
    return oslo_messaging.get_notification_transport(conf, url=url)


def _prepare_driver(conf: Any, url: str | None) -> None:
    """Register the driver's options, and set the folder for locks.

    oslo.concurrency reads ``lock_path`` from cfg.CONF alone. A value that the
    process has set there takes precedence.
    """
    driver = address(conf, url).transport
    prepare(conf)
    path = lockutils.get_lock_path(conf)
    if path and conf is not cfg.CONF:
        cfg.CONF.set_default('lock_path', path, 'oslo_concurrency')
    if driver != RABBIT:
        return
    options.register(conf)
    has_manager = conf.oslo_messaging_rabbit.use_queue_manager
    if has_manager and not lockutils.get_lock_path(cfg.CONF):
        raise errors.ConfigurationError(
            '[oslo_messaging_rabbit] use_queue_manager needs a folder for '
            'its lock: set [oslo_concurrency] lock_path'
        )


# The port for messages, and the usual offset of the management interface's.
_PORT, _HIGHER = 5672, 10_000
_MANAGEMENT_S = 5.0


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
        quote(name, '') for name in (address.virtual_host or '/', queue)
    )
    try:
        response = urllib3.request(
            'GET',
            f'http://{host.hostname}:{port}/api/queues/{path}',
            headers=urllib3.make_headers(
                basic_auth=f'{host.username}:{host.password}'
            ),
            timeout=_MANAGEMENT_S,
            retries=False,
        )
        document = response.json()
    except (urllib3.exceptions.HTTPError, ValueError):
        raise LookupError(
            'the management interface of the broker does not answer'
        ) from None
    if response.status == HTTPStatus.NOT_FOUND:
        raise LookupError(f'there is no queue {queue} yet')
    if response.status != HTTPStatus.OK:
        raise LookupError(f'{host.username} may not look at queues')
    # Without a policy the value is null, or an empty list.
    policy = dict(document.get('effective_policy_definition') or {})
    return policy.get('message-ttl')
