"""The commands of ``scheduler-manage``, and what several of them use."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent import futures
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from scheduler_service import conf as options
from scheduler_service import errors
from scheduler_service.cmd import faults, stores
from scheduler_service.cmd.threads import run_within
from scheduler_service.model import STANDARD_CLASSES
from scheduler_service.store import driver_errors, version
from scheduler_service.store.connection import Store, Writer

if TYPE_CHECKING:
    from scheduler_service.rpc.client import SchedulerClient

T = TypeVar('T')
_SYNC = 'scheduler-manage db sync'
# How long a command waits for the broker, in seconds: until it is connected,
# and until the connection is closed.
_CONNECT_S = 10.0
_CLOSE_S = 2.0
# How much of --timeout one wait for the broker or a daemon may take.
_SHARE = 0.9


@contextlib.contextmanager
def open_store(conf: Any, any_version: bool = False) -> Iterator[Store]:
    """Give the store of ``[database] connection``.

    :param any_version: also if this release cannot use its tables
    :raises ConfigurationError: the option is not set, or not a usable URL
    :raises SchemaMismatch: this release cannot use the tables
    :raises StoreUnavailable: the database does not answer
    """
    # An import or an upgrade of the tables may take long.
    store = stores.open_store(conf, for_command=True)
    try:
        if not any_version:
            with store.reading() as conn:
                version.check(conn)
        yield store
    except errors.StoreUnavailable as error:
        raise _with_address(error, conf) from error
    finally:
        store.dispose()


def _with_address(
    error: errors.StoreUnavailable, conf: Any
) -> errors.StoreUnavailable:
    """Return an error of the database that says where it is, and what to do.

    An error that says what to do already gets the place alone.
    """
    text = str(error.args[0])
    place = faults.database_address(conf)
    if _SYNC in text or isinstance(error, errors.StoreTimeout):
        return type(error)(f'{text} (the database is {place})', **error.facts)
    todo = driver_errors.advice(text)
    return type(error)(
        f'{text} (the database is {place}): {todo}', **error.facts
    )


def call(args: Any, conf: Any, work: Callable[[SchedulerClient], T]) -> T:
    """Run work with a client of the daemons on ``[scheduler] topic``.

    The bus is used on a thread that the process does not wait for at its
    end: oslo.messaging tries to reach a broker for ever.

    :raises ServiceBusy: no broker or no daemon answers
    """
    import oslo_messaging
    from oslo_messaging.transport import TransportURL

    from scheduler_service.rpc import transport
    from scheduler_service.rpc.client import SchedulerClient

    bus = transport.for_command(conf)
    place = faults.broker_address(TransportURL.parse(conf))
    to_connect = (args.timeout or _CONNECT_S / _SHARE) * _SHARE
    try:
        run_within(to_connect, lambda: transport.connect(bus), 'connect')
        client = SchedulerClient(
            conf,
            bus,
            topic=conf.scheduler.topic,
            exchange=conf.scheduler.exchange,
            timeout=args.timeout and args.timeout * _SHARE,
        )
        limit = args.timeout or conf.rpc_response_timeout + _CONNECT_S
        return run_within(limit, lambda: work(client), 'call')
    except futures.TimeoutError:
        raise errors.ServiceBusy(
            f'The message bus is unreachable: {place} does not answer: check '
            'that the broker runs, and [DEFAULT] transport_url'
        ) from None
    except oslo_messaging.MessagingTimeout:
        raise errors.ServiceBusy(
            f'No daemon answered on topic {conf.scheduler.topic} of {place}; '
            'is one running? (--local needs none)'
        ) from None
    except oslo_messaging.MessageDeliveryFailure as fault:
        raise errors.ServiceBusy(
            f'The message bus is unreachable: {place}: '
            f'{driver_errors.first_line(fault)}: check that the broker runs, '
            'and [DEFAULT] transport_url'
        ) from None
    finally:
        with contextlib.suppress(futures.TimeoutError):
            run_within(_CLOSE_S, bus.cleanup, 'close')


def read(conf: Any, query: Callable[[Any], Any]) -> Any:
    """Run a query of a connection; return its result."""
    with open_store(conf) as store, store.reading() as conn:
        return query(conn)


def write(conf: Any, work: Callable[[Writer], Any]) -> Any:
    """Run work in one transaction; return its result."""
    with open_store(conf) as store:
        return store.write(work)


def timestamp(stamp: float) -> str:
    """Return seconds since 1970 as date and time, UTC."""
    return datetime.fromtimestamp(stamp, UTC).isoformat(' ', 'milliseconds')


def default_ratios(conf: Any) -> dict[str, float]:
    """Return the allocation ratios of hosts that have none, by class."""
    settings = options.settings(conf)
    return {name: settings.default_ratio(name) for name in STANDARD_CLASSES}
