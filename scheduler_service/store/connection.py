"""Connect to the database, and run work in transactions.

Every writing transaction ends by taking the next revision from one counter
row and appending what it touched. The row stays locked until the commit, so
revisions become visible in their order: whoever reads past the last one it
saw misses nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from oslo_db import api as db_api
from oslo_db import exception as db_exception
from oslo_db.sqlalchemy import engines
from sqlalchemy.engine import Connection, Engine, make_url

from scheduler_service import errors
from scheduler_service.store import schema

T = TypeVar('T')
REVISION = 'revision'
_RETRIES = 20
_SERIALIZATION = '40001'


class ChangeRecord(msgspec.Struct, omit_defaults=True):
    """What one transaction changed, by key; ``everything`` says the rest."""

    everything: bool = False
    hosts: list[int] = []
    hosts_gone: list[int] = []
    load: list[int] = []
    instances: list[str] = []
    instances_gone: list[str] = []
    groups: list[str] = []
    aggregates: bool = False
    pools: bool = False

    def to_json(self) -> str:
        """Return it as the feed keeps it."""
        return msgspec.json.encode(self).decode()

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__struct_fields__)


class Writer:
    """One writing transaction: its connection, and what it touched.

    :ivar revision: the revision it was given, once it has been sealed; 0
        where nothing was touched
    """

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.touched = ChangeRecord()
        self.revision = 0

    def seal(self) -> None:
        """Take the revision and say what was touched; the last statements."""
        if not self.touched:
            return
        self.revision = next_number(self.conn, REVISION)
        self.conn.execute(
            _SEAL,
            {
                'revision': self.revision,
                'touched': self.touched.to_json(),
                'created_at': time.time(),
            },
        )


class Store:
    """The database, as short verbs elsewhere in this package use it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        # Called with the reason when a transaction is tried again.
        self.on_retry: Callable[[str], None] = _nothing
        self._retried = db_api.wrap_db_retry(
            max_retries=_RETRIES,
            retry_interval=0.01,
            max_retry_interval=1,
            exception_checker=self._is_to_be_tried_again,
        )(_call)
        self.dialect = engine.dialect.name
        if self.dialect == 'mariadb':
            self.dialect = 'mysql'

    @classmethod
    def connect(cls, url: str, **options: Any) -> Store:
        """Return a store at *url*; nothing is contacted yet.

        :param options: of oslo.db's ``create_engine``
        :raises ConfigurationError: where the URL cannot be used
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
        except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError) as fault:
            raise errors.ConfigurationError(
                f'[database] connection cannot be used: {fault}'
            ) from None
        except ImportError as fault:
            raise errors.ConfigurationError(
                f'[database] connection needs a driver: {fault}'
            ) from None
        if engine.dialect.name in ('mysql', 'mariadb'):
            engine = engine.execution_options(isolation_level='READ COMMITTED')
        if engine.dialect.name == 'sqlite':
            _prepare_sqlite(engine)
        if engine.dialect.name == 'postgresql':
            _prepare_postgresql(engine)
        return cls(engine)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection for reading.

        :raises StoreUnavailable: the database does not answer
        """
        with self.guarded(), self.engine.connect() as conn:
            yield conn

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn the loss of the database inside into StoreUnavailable."""
        with _translated():
            yield

    def hold(self) -> Connection:
        """Return a connection that the caller keeps and closes.

        :raises StoreUnavailable: the database does not answer
        """
        with _translated():
            return self.engine.connect()

    def write(
        self, work: Callable[[Writer], T], conn: Connection | None = None
    ) -> T:
        """Run *work* in one transaction, again where it met a deadlock.

        :param conn: a held connection to use
        :raises StoreUnavailable: the database does not answer
        """
        with _translated():
            result: T = self._again(self._write_once, work, conn)
            return result

    def _write_once(
        self, work: Callable[[Writer], T], conn: Connection | None
    ) -> T:
        with contextlib.ExitStack() as stack:
            if conn is None:
                conn = stack.enter_context(self.engine.connect())
            stack.enter_context(conn.begin())
            if self.dialect == 'sqlite':
                conn.execute(_FIRST)
            writer = Writer(conn)
            result = work(writer)
            writer.seal()
            return result

    def _again(self, call: Callable[..., T], *args: Any) -> T:
        """Call; again, bounded and after a moment, where it collided."""
        result: T = self._retried(call, *args)
        return result

    def _is_to_be_tried_again(self, fault: BaseException) -> bool:
        """Whether others were in the way; the reason is counted."""
        if isinstance(fault, db_exception.DBDeadlock):
            self.on_retry('deadlock')
            return True
        if getattr(_driver_fault(fault), 'sqlstate', None) == _SERIALIZATION:
            self.on_retry('serialization')
            return True
        return False

    def once(self, call: Callable[[], T]) -> T:
        """Run a call that is a transaction of its own, as ``write`` does.

        :raises StoreUnavailable: the database does not answer
        """
        with _translated():
            result: T = self._again(call)
            return result

    def dispose(self) -> None:
        """Close every connection that is not held."""
        self.engine.dispose()


# What drivers raise for a server that refuses, restarts or shuts down, where
# the layers above do not know it for what it is.
_LOST = (sa.exc.OperationalError, sa.exc.InterfaceError)
_SEAL = schema.changes.insert()
# SQLite lets one transaction write; to start with a write waits for the turn,
# where to come to it later would fail.
_FIRST = sa.text("UPDATE counters SET value = value WHERE name = 'revision'")


def next_number(conn: Connection, counter: str, count: int = 1) -> int:
    """Advance a counter by *count* and return it; its row stays locked."""
    table = schema.counters
    advance = (
        sa.update(table)
        .where(table.c.name == counter)
        .values(value=table.c.value + count)
    )
    if conn.dialect.name in ('mysql', 'mariadb'):
        conn.execute(advance)
        found = conn.execute(
            sa.select(table.c.value).where(table.c.name == counter)
        )
    else:
        found = conn.execute(advance.returning(table.c.value))
    return int(found.scalar_one())


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


def _nothing(reason: str) -> None:
    """Count nothing."""


def _driver_fault(fault: BaseException) -> Any:
    """Return what the driver raised, under the layers above it."""
    inner = getattr(fault, 'inner_exception', None) or fault
    return getattr(inner, 'orig', inner)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Turn the loss of the database into an error of ours."""
    try:
        yield
    except (
        db_exception.DBConnectionError,
        db_exception.CantStartEngineError,
        sa.exc.TimeoutError,
    ) as fault:
        raise errors.StoreUnavailable(
            f'The database does not answer: {first_line(fault)}'
        ) from fault
    except db_exception.DBNonExistentTable as fault:
        raise errors.StoreUnavailable(
            'The database has no tables yet: run "scheduler-manage db sync"'
        ) from fault
    except (sa.exc.DBAPIError, db_exception.DBError) as fault:
        inner = getattr(fault, 'inner_exception', fault)
        if not isinstance(inner, _LOST):
            raise
        raise errors.StoreUnavailable(
            f'The database does not answer: {first_line(inner)}'
        ) from fault


def first_line(fault: BaseException) -> str:
    """Return the first line of what a driver says, without the statement."""
    return str(fault).strip().partition('\n')[0][:300]


def _prepare_sqlite(engine: Engine) -> None:
    """Make one writer wait for another instead of failing."""

    @sa.event.listens_for(engine, 'connect')
    def _pragmas(dbapi_conn: Any, record: Any) -> None:
        dbapi_conn.execute('PRAGMA busy_timeout = 30000')
        dbapi_conn.execute('PRAGMA journal_mode = WAL')


def _prepare_postgresql(engine: Engine) -> None:
    """Plan each statement once, and send columns as they are."""
    from scheduler_service.store import arrays

    @sa.event.listens_for(engine, 'connect')
    def _settings(dbapi_conn: Any, record: Any) -> None:
        before, dbapi_conn.autocommit = dbapi_conn.autocommit, True
        dbapi_conn.execute('SET plan_cache_mode = force_generic_plan')
        dbapi_conn.execute('SET jit = off')
        dbapi_conn.autocommit = before
        arrays.register(dbapi_conn)
