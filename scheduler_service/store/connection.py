"""The database connection and its transactions.

A :class:`Store` may be used by any thread, a connection or a :class:`Writer`
only by the thread that opened it.

Every writing transaction ends by taking the next revision from one counter
row and appending a record of what it changed. The row stays locked until the
commit, so revisions become visible in order: a reader that asks for
everything after the last revision it saw misses nothing. Only MariaDB may show
one revision without the one before it, for a moment; the reader sees that by
the numbers, which have no gaps, and looks again. With each revision
goes a random token, its lineage, which shows a reader that the database went
back in time: the revision that it saw is gone, or has another token.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from oslo_db import api as db_api
from oslo_db import exception as db_exception
from oslo_db.sqlalchemy import engines
from sqlalchemy.engine import Connection, Engine, make_url

from scheduler_service import errors
from scheduler_service.store import faults, schema
from scheduler_service.store.faults import driver_fault, first_line
from scheduler_service.store.sessions import Sessions, Wait
from scheduler_service.store.timeouts import Timeouts, is_timeout

T = TypeVar('T')
REVISION = 'revision'
_RETRIES = 20
_SERIALIZATION = '40001'
_NOT_A_URL = '[database] connection is not a URL: write @ as %40, : as %3A'


class ChangeRecord(msgspec.Struct, omit_defaults=True):
    """What one transaction changed, as the ``changes`` table stores it.

    Reading the named rows again brings a snapshot up to date.

    :ivar everything: too much changed to name it: load all of it again
    :ivar hosts: ids of hosts that were added or changed
    :ivar hosts_gone: ids of hosts that were removed
    :ivar load: ids of hosts of which only use, counts or state changed
    :ivar instances: uuids of instances that were added or changed
    :ivar instances_gone: uuids of instances that were removed
    :ivar released: uuids of instances whose claims a caller released, even
        where they had none
    :ivar groups: uuids of server groups that changed or were removed
    :ivar aggregates: whether any aggregate changed
    :ivar pools: whether any pool changed
    """

    everything: bool = False
    hosts: list[int] = []
    hosts_gone: list[int] = []
    load: list[int] = []
    instances: list[str] = []
    instances_gone: list[str] = []
    released: list[str] = []
    groups: list[str] = []
    aggregates: bool = False
    pools: bool = False

    def to_json(self) -> str:
        """Return the text for the ``changes`` table."""
        return msgspec.json.encode(self).decode()

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__struct_fields__)


class Writer:
    """One writing transaction: its connection and the record of its changes.

    :ivar touched: what the transaction changed so far; every function that
        writes adds to it
    :ivar revision: the revision of the transaction once
        :meth:`append_change` ran; 0 where nothing was changed
    :ivar lineage: the token that is written with the revision
    """

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.touched = ChangeRecord()
        self.revision = 0
        self.lineage = new_lineage()

    def append_change(self) -> None:
        """Take the next revision and append the change record.

        These are the last statements of the transaction, since they lock the
        counter row that every writer needs.
        """
        if not self.touched:
            return
        self.revision = next_number(self.conn, REVISION)
        self.conn.execute(
            _APPEND_CHANGE,
            {
                'revision': self.revision,
                'touched': self.touched.to_json(),
                'lineage': self.lineage,
            },
        )


class Store:
    """The database: gives connections and runs work in transactions.

    :ivar on_retry: called with the reason (``deadlock`` or
        ``serialization``) whenever a transaction is run again
    :ivar dialect: ``sqlite``, ``postgresql`` or ``mysql`` (MariaDB too)
    :ivar timeouts: of connections that are taken now
    """

    def __init__(
        self, engine: Engine, timeouts: Timeouts | None = None
    ) -> None:
        self.engine = engine
        self.timeouts = timeouts or Timeouts()
        self._sessions = Sessions(engine, lambda: self.timeouts)
        self.on_retry: Callable[[str], None] = _ignore_reason
        self._with_retries = db_api.wrap_db_retry(
            max_retries=_RETRIES,
            retry_interval=0.01,
            max_retry_interval=1,
            exception_checker=self._is_retryable,
        )(_call)
        self.dialect = engine.dialect.name
        if self.dialect == 'mariadb':
            self.dialect = 'mysql'

    @classmethod
    def connect(
        cls, url: str, timeouts: Timeouts | None = None, **options: Any
    ) -> Store:
        """Return a store for a database URL; nothing is contacted yet.

        :param timeouts: of its connections; None: the defaults
        :param options: passed to oslo.db's ``create_engine``
        :raises ConfigurationError: the URL cannot be used
        """
        try:
            parsed = make_url(url)
            if parsed.get_backend_name() in ('mysql', 'mariadb'):
                parsed = parsed.update_query_dict({'charset': 'utf8mb4'})
            engine = engines.create_engine(
                parsed.render_as_string(hide_password=False),
                max_retries=0,
                thread_checkin=False,
                **options,
            )
        except ValueError:  # Its text may be a part of the password.
            raise errors.ConfigurationError(_NOT_A_URL) from None
        except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError) as fault:
            raise errors.ConfigurationError(
                f'[database] connection cannot be used: {fault}'
            ) from None
        except ImportError as fault:
            raise errors.ConfigurationError(
                f'[database] connection needs a driver: {fault}'
            ) from None
        return cls(engine, timeouts)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection for reading.

        :raises StoreUnavailable: the database does not answer
        """
        with translate_errors(), self.engine.connect() as conn:
            yield conn

    def hold(self) -> Connection:
        """Return a connection that the caller keeps and has to close.

        :raises StoreUnavailable: the database does not answer
        """
        with translate_errors():
            return self.engine.connect()

    def write(
        self, work: Callable[[Writer], T], conn: Connection | None = None
    ) -> T:
        """Run *work* in one transaction; return what it returns.

        The transaction is run again after a deadlock or a serialization
        failure, so *work* must not have effects outside the database.

        :param conn: a connection from :meth:`hold` to use
        :raises StoreUnavailable: the database does not answer
        """
        with translate_errors():
            result: T = self._with_retries(self._write_once, work, conn)
            return result

    def _write_once(
        self, work: Callable[[Writer], T], conn: Connection | None
    ) -> T:
        with contextlib.ExitStack() as stack:
            if conn is None:
                conn = stack.enter_context(self.engine.connect())
            stack.enter_context(conn.begin())
            if self.dialect == 'sqlite':
                conn.execute(_TAKE_WRITE_LOCK)
            writer = Writer(conn)
            result = work(writer)
            writer.append_change()
            return result

    def _is_retryable(self, fault: BaseException) -> bool:
        """Whether a transaction failed only because others ran beside it.

        A lock that could not be had in time is no such reason: whoever asked
        for it decides whether to wait longer.
        """
        if is_timeout(driver_fault(fault)):
            return False
        if isinstance(fault, db_exception.DBDeadlock):
            self.on_retry('deadlock')
            return True
        if getattr(driver_fault(fault), 'sqlstate', None) == _SERIALIZATION:
            self.on_retry('serialization')
            return True
        return False

    def run(self, call: Callable[[], T]) -> T:
        """Run a call that is a transaction of its own.

        Retries and errors are those of :meth:`write`.

        :raises StoreUnavailable: the database does not answer
        """
        with translate_errors():
            result: T = self._with_retries(call)
            return result

    def abort_waits(self) -> None:
        """Break off what other threads wait for, and drop idle connections.

        They get StoreUnavailable.
        """
        self._sessions.abort()

    def abort_wait(self, wait: Wait) -> None:
        """Break off one wait, if it goes on."""
        self._sessions.abort_wait(wait)

    def left_behind(self) -> list[Wait]:
        """Return waits that were broken off, and were not forgotten yet."""
        return self._sessions.left_behind()

    def forget(self, wait: Wait) -> None:
        """Forget a wait that was broken off."""
        self._sessions.forget(wait)

    def waits(self, seconds: float) -> list[Wait]:
        """Return what has been waiting for the database for longer."""
        return self._sessions.waits(seconds)

    def use_timeouts(self, timeouts: Timeouts) -> None:
        """Have connections used with other limits from now on.

        Those from :meth:`hold` are their holders' to make anew.
        """
        self.timeouts = timeouts

    def dispose(self) -> None:
        """Close all connections but those from :meth:`hold`."""
        self.engine.dispose()


# Drivers raise these for a server that refuses connections, restarts or shuts
# down; oslo.db does not recognise every one as a lost connection.
_LOST = (sa.exc.OperationalError, sa.exc.InterfaceError)
_APPEND_CHANGE = schema.changes.insert()
_COUNTERS = schema.counters
_NEXT = _COUNTERS.c.value + sa.bindparam('count')
_MINE = _COUNTERS.c.name == sa.bindparam('counter')
_ADVANCE = (
    sa.update(_COUNTERS)
    .values(value=_NEXT)
    .where(_MINE)
    .returning(_COUNTERS.c.value)
)
_ADVANCE_MYSQL = (
    sa.update(_COUNTERS)
    .values(value=sa.func.last_insert_id(_NEXT))
    .where(_MINE)
)
# SQLite lets only one transaction write. A transaction that starts with a
# write waits for its turn; one that first reads and then writes would fail.
_TAKE_WRITE_LOCK = sa.text(
    "UPDATE counters SET value = value WHERE name = 'revision'"
)


def new_lineage() -> str:
    """Return a token for one change, which no other change has."""
    return secrets.token_hex(8)


def next_number(conn: Connection, counter: str, count: int = 1) -> int:
    """Advance a counter by *count* and return its new value.

    The counter's row stays locked until the transaction ends.
    """
    asked = {'counter': counter, 'count': count}
    if conn.dialect.name in ('mysql', 'mariadb'):
        # The server hands the value back with its answer.
        return int(conn.execute(_ADVANCE_MYSQL, asked).lastrowid)
    return int(conn.execute(_ADVANCE, asked).scalar_one())


def in_chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield lists of at most *size* items."""
    chunk: list[Any] = []
    for item in items:
        chunk.append(item)
        if len(chunk) >= size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _call(call: Callable[..., Any], *args: Any) -> Any:
    return call(*args)


def _ignore_reason(reason: str) -> None:
    """Do nothing: nobody counts how often transactions are run again."""


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Raise StoreUnavailable where the code inside loses the database.

    :raises StoreUnavailable: the database does not answer, has no tables, or
        cannot store anything, such as on a full disk
    :raises StoreTimeout: it does, but a lock or a statement took too long
    """
    try:
        yield
    except (
        db_exception.DBConnectionError,
        db_exception.CantStartEngineError,
        sa.exc.TimeoutError,
    ) as fault:
        known = faults.sentence(fault)
        raise errors.StoreUnavailable(
            known or f'The database does not answer: {first_line(fault)}'
        ) from fault
    except db_exception.DBNonExistentTable as fault:
        raise errors.StoreUnavailable(
            f'The database has no tables yet, or not the table {fault.table}: '
            'run "scheduler-manage db sync"'
        ) from fault
    except (sa.exc.DBAPIError, db_exception.DBError) as fault:
        known = faults.sentence(fault)
        if known is not None:
            raise errors.StoreUnavailable(known) from fault
        if met_others(fault):
            raise errors.StoreTimeout(
                f'The database takes too long: '
                f'{first_line(driver_fault(fault))}'
            ) from fault
        inner = getattr(fault, 'inner_exception', fault)
        if not isinstance(inner, _LOST):
            raise
        raise errors.StoreUnavailable(
            f'The database does not answer: {first_line(inner)}'
        ) from fault


def met_others(fault: BaseException) -> bool:
    """Whether a transaction failed since others ran beside it, or held locks.

    :param fault: as SQLAlchemy or oslo.db raised it
    """
    return is_timeout(driver_fault(fault)) or _is_conflict(fault)


def _is_conflict(fault: BaseException) -> bool:
    """Whether a transaction failed since others ran beside it.

    That is a deadlock, a serialization failure, or on Galera a transaction of
    another node that came first. It was repeated, with growing pauses.
    """
    if isinstance(fault, db_exception.DBDeadlock):
        return True
    return getattr(driver_fault(fault), 'sqlstate', None) == _SERIALIZATION
