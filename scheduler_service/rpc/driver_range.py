"""Private parts of oslo.messaging that the driver for RabbitMQ needs.

The driver is a subclass of the stock driver, and uses parts of it that may
change with any release. The module has the range of tested releases, and
checks whether the parts exist. Stateless, and imports nothing of the driver,
whose import fails where parts are missing.
"""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Iterator
from importlib import metadata
from typing import Any

LOG = logging.getLogger(__name__)
# The lowest and the highest release that the driver's tests run with.
LOWEST, HIGHEST = '18.2.0', '18.3.1'
_DRIVERS = 'oslo_messaging._drivers'
# Module -> names used -> for a class, attributes of the class or of its
# instances; for a function, its first parameters.
NEEDED: dict[str, dict[str, tuple[str, ...]]] = {
    'amqp': {'UNIQUE_ID': (), 'AMQPDestinationNotFound': ()},
    'amqpdriver': {
        'AMQPListener': (
            '_message_operations_handler', '_obsolete_reply_queues',
            '_shutdown', '_current_timeout', 'conn', 'driver', 'incoming',
            'msg_id_cache', 'poll', 'message_cls',
        ),
        'AMQPIncomingMessage': (
            '_message_operations_handler', 'listener', 'orig_msg_id',
            'reply_q', 'unique_id',
        ),
        'MessageOperationsHandler': ('do', 'process', 'stop'),
    },
    'base': {'PollStyleListenerAdapter': ()},
    'common': {
        'PURPOSE_LISTEN': (), 'PURPOSE_SEND': (),
        'serialize_remote_exception': (),
    },
    'impl_rabbit': {
        'rabbit_opts': (),
        'RabbitDriver': (
            '_connection_pool', '_get_connection', '_get_exchange',
            'prefetch_size',
        ),
        'Connection': (
            '_connection_lock', '_consumers', '_ensure_publishing',
            '_new_tags', '_publish', '_set_current_channel',
            'amqp_auto_delete', 'channel', 'connection', 'declare_consumer',
            'declare_fanout_consumer', 'durable', 'enable_cancel_on_failover',
            'ensure', 'ensure_connection', 'interval_max', 'interval_start',
            'interval_stepping', 'max_retries', 'rabbit_ha_queues',
            'rabbit_quorum_queue',
            'rabbit_quorum_queue_config', 'rabbit_transient_queues_ttl',
            'set_transport_socket_timeout',
        ),
        'Consumer': (
            '_callback', 'cancel', 'durable', 'exchange', 'queue_arguments',
            'queue_auto_delete', 'queue_name',
        ),
    },
}  # fmt: skip
# Class -> positional parameters of its __init__.
PARAMETERS = {
    'AMQPListener': ('driver', 'conn'),
    'AMQPIncomingMessage': (
        'listener', 'ctxt', 'message', 'unique_id', 'msg_id', 'reply_q',
        'client_timeout', 'obsolete_reply_queues',
        'message_operations_handler',
    ),
    'RabbitDriver': (
        'conf', 'url', 'default_exchange', 'allowed_remote_exmods',
    ),
}  # fmt: skip
LOST = (
    'requests of a daemon that ends are lost, and so are requests that it '
    'cannot process while the database is away; requests whose callers have '
    'given up are processed; messages that end daemons are not quarantined'
)


def installed() -> str:
    """Return the installed release of oslo.messaging."""
    return metadata.version('oslo.messaging')


def is_tested(release: str) -> bool:
    """Whether a release is in the range that was tested."""
    low, high = _numbers(LOWEST), _numbers(HIGHEST)
    return low <= _numbers(release) <= high


def missing() -> list[str]:
    """Return the dotted names that the driver needs and that are missing."""
    return [name for module in NEEDED for name in _missing_of(module)]


def is_usable() -> bool:
    """Whether the driver can be used; if not, log why, and what is lost."""
    found = missing()
    if found:
        LOG.warning(
            'oslo.messaging %s lacks what the driver for RabbitMQ needs (%s), '
            'so that the stock driver is used: %s. Install a release from %s '
            'to %s',
            installed(), ', '.join(found[:5]), LOST, LOWEST, HIGHEST,
        )  # fmt: skip
    elif not is_tested(installed()):
        LOG.info(
            'oslo.messaging %s is not among the releases that the driver for '
            'RabbitMQ was tested with, %s to %s; it has all needed parts',
            installed(), LOWEST, HIGHEST,
        )  # fmt: skip
    return not found


def part(module: str, name: str = '') -> Any:
    """Return a private module of oslo.messaging, or a name of it.

    :param module: below ``oslo_messaging``, such as ``_drivers.common``
    :return: None where this release has none
    """
    try:
        found = importlib.import_module(f'oslo_messaging.{module}')
    except ImportError:
        return None
    return getattr(found, name, None) if name else found


def _missing_of(name: str) -> Iterator[str]:
    module = part(f'_drivers.{name}')
    if module is None:
        yield f'{_DRIVERS}.{name}'
        return
    for word, members in NEEDED[name].items():
        found = getattr(module, word, None)
        if found is None:
            yield f'{name}.{word}'
            continue
        known = _members(found) if members else frozenset()
        for member in members:
            if member not in known:
                yield f'{name}.{word}.{member}'
        if not _takes(found, PARAMETERS.get(word, ())):
            yield f'{name}.{word}.__init__'


def _members(kind: Any) -> frozenset[str]:
    """Return the names that a class has, or that its methods set or read."""
    found = set(dir(kind))
    for base in inspect.getmro(kind):
        for member in vars(base).values():
            function = inspect.unwrap(getattr(member, 'fget', None) or member)
            code = getattr(function, '__code__', None)
            if code is not None:
                found.update(code.co_names)
    return frozenset(found)


def _takes(kind: Any, parameters: tuple[str, ...]) -> bool:
    """Whether the parameters of a class begin with these."""
    if not parameters:
        return True
    has = tuple(inspect.signature(kind.__init__).parameters)[1:]
    return has[: len(parameters)] == parameters


def _numbers(release: str) -> tuple[int, ...]:
    """Return a release as comparable numbers; other parts count as 0."""
    words = release.split('.')[:3]
    return tuple(int(word) if word.isdigit() else 0 for word in words)
