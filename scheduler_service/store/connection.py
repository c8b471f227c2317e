"""The database connection and its transactions.

A :class:`Store` may be used by any thread; a connection, a :class:`Writer` or
a :class:`PersistentWriter` belongs to one thread at a time.

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
import operator
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from oslo_db import api as db_api
from oslo_db.sqlalchemy import engines
from sqlalchemy.engine import Connection, Engine, make_url

from scheduler_service import errors
from scheduler_service.store import driver_errors, schema
from scheduler_service.store.driver_errors import (
    translate_connect_errors,
    translate_errors,
)
from scheduler_service.store.sessions import (
    LIMITS,
    Sessions,
    Timeouts,
    limited,
)

T = TypeVar('T')
REVISION = 'revision'
_RETRIES = 20
# A kept connection that was idle for longer may be closed by now, in seconds.
_IDLE_S = 10.0
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


_NOTHING = ChangeRecord()


class Writer:
    """One writing transaction: its connection and the record of its changes.

    :ivar touched: what the transaction changed so far; every function that
        writes adds to it
    :ivar revision: the revision of the transaction once
        :meth:`take_revision` ran; 0 before
    :ivar lineage: the token that is written with the revision
    """

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.touched = ChangeRecord()
        self.revision = 0
        self.lineage = new_lineage()

    def take_revision(self) -> int:
        """Take the next revision, once; return it.

        Whatever was committed with an earlier revision is seen from then on,
        and nothing else is committed with one until the transaction ends: a
        look at rows that is to be the last one comes after this. Few
        statements follow it, since every writer needs the counter's row. None
        of them waits for another lock: its holder may wait for this row.
        """
        if not self.revision:
            self.revision = next_number(self.conn, REVISION)
        return self.revision

    def append_change(self) -> None:
        """Append the change record, if anything was changed.

        This is the last statement of the transaction.
        """
        if not self.revision and self.touched == _NOTHING:
            return
        self.conn.execute(
            _APPEND_CHANGE,
            {
                'revision': self.take_revision(),
                'touched': self.touched.to_json(),
                'lineage': self.lineage,
            },
        )


class Store:
    """The database: gives connections and runs work in transactions.

    :ivar on_retry: called with the reason (``deadlock`` or
        ``serialization``) whenever a transaction is run again
    :ivar dialect: ``sqlite``, ``postgresql`` or ``mysql`` (MariaDB too)
    :ivar timeouts: of connections that are taken now; where they change,
        their holders replace those from :meth:`hold`
    :ivar sessions: the open connections, whose waits can be broken off
    """

    def __init__(
        self, engine: Engine, timeouts: Timeouts | None = None
    ) -> None:
        self.engine = engine
        self.timeouts = timeouts or Timeouts()
        _prepare(engine, lambda: self.timeouts)
        self.sessions = Sessions(engine, lambda: self.timeouts)
        self.on_retry: Callable[[str], None] = lambda reason: None
        self._with_retries = db_api.wrap_db_retry(
            max_retries=_RETRIES,
            retry_interval=0.01,
            max_retry_interval=1,
            exception_checker=self._is_retryable,
        )(operator.call)
        self.dialect = engine.dialect.name

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
                # One name for both: the server says which of them it is.
                _, plus, driver = parsed.drivername.partition('+')
                parsed = parsed.set(
                    drivername=f'mysql{plus}{driver}'
                ).update_query_dict({'charset': 'utf8mb4'})
            if parsed.get_backend_name() == 'sqlite':
                # There is no pool that connections are waited for in.
                options.pop('pool_timeout', None)
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
    def reading(self, seconds: float | None = None) -> Iterator[Connection]:
        """Yield a connection for reading.

        :param seconds: how long a statement may take; None: as others
        :raises StoreUnavailable: the database does not answer
        :raises StoreTimeout: a statement took too long
        """
        with translate_errors(), self.engine.connect() as conn:
            if seconds is None:
                yield conn
            else:
                with limited(conn, seconds):
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
        """Whether a transaction failed only because of concurrent ones.

        A lock timeout does not count: the caller decides whether to wait
        longer.
        """
        reason = driver_errors.conflict(fault)
        if reason is None or driver_errors.is_timeout(fault):
            return False
        self.on_retry(reason)
        return True

    def run(self, call: Callable[[], T]) -> T:
        """Run a call that is a transaction of its own.

        Retries and errors are those of :meth:`write`.

        :raises StoreUnavailable: the database does not answer
        """
        with translate_errors():
            result: T = self._with_retries(call)
            return result

    def dispose(self) -> None:
        """Close all connections but those from :meth:`hold`."""
        self.engine.dispose()


class KeptConnection:
    """A connection that stays open until it is dropped.

    Taking one from the pool checks it with a round trip each time.

    :param options: execution options
    """

    def __init__(self, store: Store, **options: Any) -> None:
        self._store, self._options = store, options
        self._conn: Connection | None = None

    @property
    def is_open(self) -> bool:
        return self._conn is not None

    def get(self) -> Connection:
        """Return the connection, which is opened if it is not.

        :raises StoreUnavailable: the database does not answer
        """
        if self._conn is None:
            conn = self._store.hold()
            self._conn = conn.execution_options(**self._options)
        return self._conn

    def drop(self) -> None:
        """Close the connection; the next use opens another."""
        conn, self._conn = self._conn, None
        if conn is not None:
            with contextlib.suppress(Exception):
                conn.invalidate()
            with contextlib.suppress(Exception):
                conn.close()

    def is_waiting(self) -> bool:
        """Whether an answer is waited for; on SQLite none ever is.

        Any thread may call this.
        """
        conn = self._conn
        with contextlib.suppress(Exception):
            session: Any = conn and conn.connection.dbapi_connection
            return getattr(session, 'waits_since', None) is not None
        return False


class PersistentWriter(KeptConnection):
    """Runs transactions on a connection that stays open."""

    _used_at = 0.0

    def write(self, work: Callable[[Writer], T]) -> T:
        """Run *work* in one transaction; return what it returns.

        Where the connection turns out to be lost, *work* is run once more on
        a new connection, so running it twice must do no harm.

        :raises StoreUnavailable: the database does not answer
        """
        if time.monotonic() - self._used_at > _IDLE_S:
            self.drop()
        was_open = self.is_open
        try:
            return self._write(work)
        except errors.StoreTimeout:
            raise
        except errors.StoreUnavailable:
            if not was_open:
                raise
            return self._write(work)

    def _write(self, work: Callable[[Writer], T]) -> T:
        conn = self.get()
        try:
            result = self._store.write(work, conn)
        except BaseException:
            self.drop()
            raise
        self._used_at = time.monotonic()
        return result


def _prepare(engine: Engine, limits: Callable[[], Timeouts]) -> None:
    """Have new connections of an engine set up; load only its driver.

    :param limits: gives the limits of a connection that is made now
    :raises ConfigurationError: the URL has parameters that the driver does
        not take
    """
    dialect = engine.dialect

    @sa.event.listens_for(engine, 'do_connect')
    def _begin(dialect: Any, record: Any, args: Any, kwargs: Any) -> None:
        """Keep the limits: they may change while a connection is made."""
        record.info[LIMITS] = limits()

    if dialect.name == 'sqlite':

        @sa.event.listens_for(engine, 'connect')
        def _pragmas(dbapi_conn: Any, record: Any) -> None:
            """Let a writer wait for another instead of failing at once."""
            limit_ms = int(record.info[LIMITS].lock * 1000)
            dbapi_conn.execute(f'PRAGMA busy_timeout = {limit_ms}')
            dbapi_conn.execute('PRAGMA journal_mode = WAL')

        return

    driver: Any
    if (dialect.name, dialect.driver) == ('postgresql', 'psycopg'):
        from scheduler_service.store import postgresql as driver
    elif dialect.driver == 'pymysql':
        from scheduler_service.store import mysql as driver
    else:
        return
    with translate_connect_errors(dialect):
        driver.check(*dialect.create_connect_args(engine.url))

    @sa.event.listens_for(engine, 'do_connect')
    def _connect(dialect: Any, record: Any, args: Any, kwargs: Any) -> Any:
        with translate_connect_errors(dialect):
            return driver.connect(args, kwargs, record.info[LIMITS])

    @sa.event.listens_for(engine, 'connect')
    def _set_up(session: Any, record: Any) -> None:
        driver.set_up(session, record.info[LIMITS])


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
_LOCK_COUNTER = sa.select(_COUNTERS.c.value).where(_MINE).with_for_update()
# SQLite lets only one transaction write. A transaction that starts with a
# write waits for the lock; if it first read and then wrote, it would fail.
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
    values = {'counter': counter, 'count': count}
    if conn.dialect.name == 'mysql':
        # The server hands the value back with its answer.
        return int(conn.execute(_ADVANCE_MYSQL, values).lastrowid)
    return int(conn.execute(_ADVANCE, values).scalar_one())


def lock_counter(conn: Connection, counter: str) -> None:
    """Lock a counter's row until the transaction ends."""
    conn.execute(_LOCK_COUNTER, {'counter': counter})


def in_chunks(items: Iterable[Any], size: int = 500) -> Iterator[list[Any]]:
    """Yield lists of at most *size* items.

    The default suits keys of a statement: SQLite takes a limited number.
    """
    chunk: list[Any] = []
    for item in items:
        chunk.append(item)
        if len(chunk) >= size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
