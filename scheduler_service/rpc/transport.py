"""Builds transports from the options, and prepares oslo.messaging for them.

The main thread calls the functions at the start. Any thread may then use a
transport.
"""

from __future__ import annotations

import bz2
import contextlib
import lzma
import zlib
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

import kombu
import oslo_messaging
from amqp.exceptions import AccessRefused, NotAllowed
from kombu import compression
from oslo_concurrency import lockutils
from oslo_config import cfg
from oslo_messaging._drivers import common, impl_rabbit
from oslo_messaging.transport import TransportURL

from scheduler_service import errors
from scheduler_service.rpc import driver_range

# The most bytes of an unpacked message: many times those of a request.
MOST_BYTES = 64 * 2**20
# Content type, as the library names it -> constructor of the unpacker.
_UNPACKERS: dict[str, Callable[[], Any]] = {
    'application/x-gzip': zlib.decompressobj,
    'application/x-bz2': bz2.BZ2Decompressor,
    'application/x-lzma': lzma.LZMADecompressor,
}


def limit_compression() -> None:
    """Limit unpacked messages to ``MOST_BYTES`` in this process.

    The library drops a message that cannot be unpacked.
    """
    for kind, unpacker in _UNPACKERS.items():
        pack, _ = compression.get_encoder(kind)
        compression.register(pack, _bounded(unpacker), kind)


def _bounded(unpacker: Callable[[], Any]) -> Callable[[bytes], bytes]:
    """Return a function that unpacks a whole body.

    The function raises ValueError if the body is too large or incomplete.
    """

    def unpack(body: bytes) -> bytes:
        work = unpacker()
        content: bytes = work.decompress(body, MOST_BYTES)
        if not work.eof:
            raise ValueError(
                f'the message is not complete, or has more than {MOST_BYTES} '
                'bytes when it is unpacked'
            )
        return content

    return unpack


EXCEPTIONS = ['scheduler_service.errors']
_RABBIT = 'oslo_messaging_rabbit'
_LATE_ACK = 'rabbit_late_ack'
_RABBIT_URLS = 'rabbit', _LATE_ACK
# oslo.messaging registers these on cfg.CONF alone, and reads them from the
# object that it gets. Not every release has both.
_GLOBAL_OPTIONS = {
    'oslo_messaging_tracing': '_tracing.client',
    'oslo_messaging_metrics': '_metrics.client',
}
# After how many seconds the broker deletes the reply queue of a command that
# has ended.
_COMMAND_QUEUE_TTL_S = 60
# How often a command tries to connect, to each broker of the URL.
_TRIES = 1


def prepare(conf: Any) -> None:
    """Register on *conf* what oslo.messaging registers on cfg.CONF alone."""
    for group, module in _GLOBAL_OPTIONS.items():
        options = driver_range.part(module, group)
        if options is not None:
            conf.register_opts(options, group=group)


def for_client(conf: Any, url: str | None = None) -> Any:
    """Return a transport for calls and casts.

    :raises ConfigurationError: the queue manager has no folder for its lock
    """
    _prepare_driver(conf, address(conf, url))
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
    conf.register_opts(impl_rabbit.rabbit_opts, group=_RABBIT)
    conf.set_override('use_queue_manager', False, _RABBIT)
    conf.set_override(
        'rabbit_transient_queues_ttl', _COMMAND_QUEUE_TTL_S, _RABBIT
    )
    return for_client(conf)


def target(
    exchange: str, topic: str, server: str, fanout: bool = False
) -> Any:
    """Return the target of a server.

    :param fanout: whether the server gets casts to all servers of the topic
    """
    return oslo_messaging.Target(
        exchange=exchange, topic=topic, server=server, fanout=fanout
    )


def address(conf: Any, url: str | None = None) -> Any:
    """Return the address of the broker.

    :param url: in place of the option's
    :raises ConfigurationError: the URL is invalid, or has no driver
    """
    try:
        found = TransportURL.parse(conf, url)
    except (oslo_messaging.InvalidTransportURL, ValueError):
        # The library's message may include the password.
        raise errors.ConfigurationError(
            '[DEFAULT] transport_url is not an address such as '
            'rabbit://USER:PASSWORD@HOST:5672/VHOST'
        ) from None
    drivers = metadata.entry_points(group='oslo.messaging.drivers')
    if found.transport not in drivers.names:
        raise errors.ConfigurationError(
            f'[DEFAULT] transport_url: there is no driver {found.transport}'
        )
    try:
        drivers[found.transport].load()
    except ImportError as fault:
        raise errors.ConfigurationError(
            f'[DEFAULT] transport_url: the driver {found.transport} cannot be '
            f'loaded: {fault}'
        ) from None
    return found


@contextlib.contextmanager
def logins() -> Iterator[None]:
    """Translate a refused login into an error that names the option.

    :raises ConfigurationError: the broker refused the login
    """
    try:
        yield
    except (AccessRefused, NotAllowed) as refusal:
        raise errors.ConfigurationError(
            '[DEFAULT] transport_url: the broker refuses the login '
            f'({refusal.reply_text}); check user, password and virtual host'
        ) from None


def connect(bus: Any) -> None:
    """Connect to the broker; a call would try for ever.

    :raises ConfigurationError: the broker refuses the login
    :raises MessageDeliveryFailure: the broker does not accept a connection
    """
    driver = bus._driver
    if not isinstance(driver, impl_rabbit.RabbitDriver):
        return
    try:
        with (
            logins(),
            driver._get_connection(common.PURPOSE_SEND, retry=_TRIES),
        ):
            pass
    except (kombu.exceptions.KombuError, OSError) as fault:
        raise oslo_messaging.MessageDeliveryFailure(str(fault)) from fault


def for_server(conf: Any, url: str | None = None) -> Any:
    """Return a transport that acknowledges requests after their work.

    If oslo.messaging lacks parts that it needs, a warning is logged, and the
    stock transport is returned.

    :raises ConfigurationError: the queue manager has no folder for its lock
    """
    parsed = address(conf, url)
    _prepare_driver(conf, parsed)
    limit_compression()
    if parsed.transport in _RABBIT_URLS:
        usable = driver_range.is_usable()
        parsed.transport = _LATE_ACK if usable else 'rabbit'
    return oslo_messaging.get_rpc_transport(
        conf, url=parsed, allowed_remote_exmods=EXCEPTIONS
    )


def for_notifications(conf: Any, url: str | None = None) -> Any:
    """Return a transport for notifications.

    :raises ConfigurationError: the queue manager has no folder for its lock
    """
    _prepare_driver(conf, address(conf, url))
    return oslo_messaging.get_notification_transport(conf, url=url)


def _prepare_driver(conf: Any, url: Any) -> None:
    """Register the driver's options, and set the folder for locks.

    oslo.concurrency reads ``lock_path`` from cfg.CONF alone. A value that the
    process has set there takes precedence.
    """
    prepare(conf)
    path = lockutils.get_lock_path(conf)
    if path and conf is not cfg.CONF:
        cfg.CONF.set_default('lock_path', path, 'oslo_concurrency')
    if url.transport not in _RABBIT_URLS:
        return
    conf.register_opts(impl_rabbit.rabbit_opts, group=_RABBIT)
    wanted = conf.oslo_messaging_rabbit.use_queue_manager
    if wanted and not lockutils.get_lock_path(cfg.CONF):
        raise errors.ConfigurationError(
            '[oslo_messaging_rabbit] use_queue_manager needs a folder for '
            'its lock: set [oslo_concurrency] lock_path'
        )
