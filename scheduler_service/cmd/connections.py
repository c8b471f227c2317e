"""Connections of the daemon and of commands to the database and the bus.

Called by the main thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pwd
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeVar

from scheduler_service import errors
from scheduler_service.cmd import output
from scheduler_service.cmd.program import error_line, run_within
from scheduler_service.conf import effective
from scheduler_service.conf.database import timeouts
from scheduler_service.moments import Occurrence
from scheduler_service.store import driver_errors, version
from scheduler_service.store.connection import Store, Writer
from scheduler_service.store.records import daemons
from scheduler_service.store.records.daemons import Registration

if TYPE_CHECKING:
    from scheduler_service.rpc.client import SchedulerClient

T = TypeVar('T')
_SYNC = 'scheduler-manage db sync'
# How long a command waits for the broker, in seconds: until it is connected,
# and until the connection is closed.
_CONNECT_S = 10.0
_CLOSE_S = 2.0
# Share of --timeout for a single wait for the broker or a daemon.
_SHARE = 0.9


def new_store(conf: Any, for_command: bool = False) -> Store:
    """Return the store of ``[database] connection``; it connects later.

    :param for_command: statements have no time limit and may read whole
        tables: an import or an upgrade of the tables may take long
    :raises ConfigurationError: the option is not set, or not a usable URL
    """
    url = conf.database.connection
    if not url:
        raise errors.ConfigurationError(
            '[database] connection is not set; for example '
            'postgresql+psycopg://scheduler@localhost/scheduler'
        )
    wait_s = conf.database.pool_timeout
    if not 0 <= (wait_s or 0) <= effective.LONGEST_S:
        raise errors.ConfigurationError(
            f'[database] pool_timeout: {wait_s} is below 0, or too long'
        )
    limits = timeouts(conf)
    if for_command:
        limits = dataclasses.replace(limits, statement=0, whole_tables=True)
    return Store.connect(
        url,
        limits,
        connection_recycle_time=conf.database.connection_recycle_time,
        max_pool_size=conf.database.max_pool_size,
        max_overflow=conf.database.max_overflow,
        pool_timeout=wait_s,
    )


def registration(conf: Any, name: str, daemon_id: str) -> Registration:
    """Return the entry of a daemon in the register that daemons share.

    :param daemon_id: of its process
    """
    return Registration(
        daemon_id,
        name,
        metadata.version('scheduler-service'),
        effective.fingerprint(conf),
        effective.document(conf),
    )


@contextlib.contextmanager
def open_store(conf: Any, any_version: bool = False) -> Iterator[Store]:
    """Open the store of ``[database] connection`` for a command.

    :param any_version: also if this release cannot use its tables
    :raises ConfigurationError: the option is not set, or not a usable URL
    :raises SchemaMismatch: this release cannot use the tables
    :raises StoreUnavailable: the database does not answer
    """
    store = new_store(conf, for_command=True)
    try:
        if not any_version:
            with store.reading() as conn:
                version.check(conn)
        yield store
    except errors.StoreUnavailable as error:
        text = str(error.args[0])
        located = f'{text} (the database is {database_address(conf)})'
        # Some have an advice already.
        if _SYNC not in text and not isinstance(error, errors.StoreTimeout):
            located += f': {driver_errors.advice(text)}'
        raise type(error)(located, **error.facts) from error
    finally:
        store.dispose()


def read(conf: Any, query: Callable[[Any], T], any_version: bool = False) -> T:
    """Run a query on a connection of :func:`open_store`; return its result."""
    with open_store(conf, any_version) as store, store.reading() as conn:
        return query(conn)


def write(conf: Any, work: Callable[[Writer], T]) -> T:
    """Run work in one transaction; return its result."""
    with open_store(conf) as store:
        return store.write(work)


def record_command(conf: Any, line: str, began: float) -> None:
    """Record that an operator's command changed something.

    Where that fails, a line on standard error says so. A command that asks a
    daemon need not know the database: then it is not recorded.

    :param line: the command, which has no secrets: no option takes one
    :param began: by ``time.monotonic``
    """
    if not conf.database.connection:
        return
    done = Occurrence(daemons.COMMAND, line, began, time.monotonic())
    try:
        write(conf, lambda w: daemons.record(w.conn, _user(), [done]))
    except errors.SchemaMismatch:
        # The command has said so.
        return
    except Exception as fault:
        output.remark(f'The history lacks this command: {error_line(fault)}')


def _user() -> str:
    """Return the user of the operating system, and who became it by sudo."""
    number = os.getuid()
    try:
        name = pwd.getpwuid(number).pw_name
    except KeyError:
        name = str(number)
    person = os.environ.get('SUDO_USER')
    return f'{name} ({person} by sudo)' if person else name


def call(args: Any, conf: Any, work: Callable[[SchedulerClient], T]) -> T:
    """Run work with a client of the daemons on ``[scheduler] topic``.

    :raises ServiceBusy: no broker or no daemon answers
    """
    with connected(args, conf) as client:
        limit = args.timeout or conf.rpc_response_timeout + _CONNECT_S
        return run_within(limit, lambda: work(client), 'call')


@contextlib.contextmanager
def connected(args: Any, conf: Any) -> Iterator[SchedulerClient]:
    """Yield a client of the daemons on ``[scheduler] topic``.

    The bus is used on threads that the process does not join at its end:
    oslo.messaging never stops trying to reach a broker.

    :raises ServiceBusy: no broker or no daemon answers, also the code inside
    """
    import oslo_messaging
    from oslo_messaging.transport import TransportURL

    from scheduler_service.rpc import transport
    from scheduler_service.rpc.client import SchedulerClient

    bus = transport.for_command(conf)
    place = broker_address(TransportURL.parse(conf))
    to_connect = (args.timeout or _CONNECT_S / _SHARE) * _SHARE
    try:
        run_within(to_connect, lambda: transport.connect(conf), 'connect')
        client = SchedulerClient(
            conf,
            bus,
            topic=conf.scheduler.topic,
            exchange=conf.scheduler.exchange,
            timeout=args.timeout and args.timeout * _SHARE,
        )
        yield client
    except futures.TimeoutError:
        raise _unreachable(place, 'it does not answer') from None
    except oslo_messaging.MessagingTimeout:
        raise errors.ServiceBusy(
            f'No daemon answered on topic {conf.scheduler.topic} of {place}; '
            'is a daemon running? (--local needs none)'
        ) from None
    except oslo_messaging.MessageDeliveryFailure as fault:
        raise _unreachable(place, driver_errors.first_line(fault)) from None
    finally:
        with contextlib.suppress(futures.TimeoutError):
            run_within(_CLOSE_S, bus.cleanup, 'close')


def _unreachable(place: str, reason: str) -> errors.ServiceBusy:
    return errors.ServiceBusy(
        f'The message bus is unreachable: {place}: {reason}: check that the '
        'broker runs, and [DEFAULT] transport_url'
    )


def addresses(conf: Any) -> str:
    """Return the addresses of database and broker, without passwords."""
    from oslo_messaging.transport import TransportURL

    text = f'the broker is {broker_address(TransportURL.parse(conf))}'
    if conf.database.connection:
        text = f'the database is {database_address(conf)}, {text}'
    return text


def database_address(conf: Any) -> str:
    """Return ``[database] connection`` without passwords."""
    from sqlalchemy.engine import make_url

    url = make_url(conf.database.connection)
    # Some drivers accept a password in the query of the URL.
    return url._replace(password=None).set(query={}).render_as_string()


def broker_address(url: Any) -> str:
    """Return a transport URL without passwords."""
    hosts = ','.join(
        (f'{host.username}@' if host.username else '')
        + f'{host.hostname}:{host.port or "default port"}'
        for host in url.hosts
    )
    return f'{url.transport}://{hosts}/{url.virtual_host or ""}'
