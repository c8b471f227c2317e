"""PostgreSQL's driver: sessions with limits, and columns sent as arrays.

A connection belongs to one thread at a time; any thread may abort its wait.
Arrays are of any thread. psycopg can send Python lists as well, but takes
about a microsecond for each element; a claim in a batch has some thirty.
"""

from __future__ import annotations

import contextlib
import inspect
import struct
import time
from collections.abc import Callable, Generator
from typing import Any

import psycopg
from psycopg import pq
from psycopg.adapt import Dumper
from psycopg.conninfo import make_conninfo

from scheduler_service.store.sessions import (
    APPLICATION,
    KEEPALIVES,
    SERVER,
    Session,
    Timeouts,
)

_header = struct.Struct('>5i').pack
_length = struct.Struct('>i').pack
_NULL = _length(-1)
_SHORT = 1024
_LENGTHS = [_length(size) for size in range(_SHORT)]


class PostgreSQLSession(psycopg.Connection[Any], Session):
    """A connection whose waits end.

    :ivar read_timeout: seconds that one wait may take; None: no limit
    :ivar aborted: whether the next wait that is not over at once fails; an
        answer of the server shows that the connection works
    """

    read_timeout: float | None = None
    aborted = False

    def __del__(self, *args: Any) -> None:
        # SQLAlchemy forgets the connections of a pool that was disposed of
        # while they were in use.
        with contextlib.suppress(Exception):
            self.close()

    def limit_statements(self, seconds: float, whole_tables: bool) -> None:
        """Have the server end statements that take longer; 0: no limit.

        :param whole_tables: whether they may read whole tables
        """
        self.execute(
            f'SET statement_timeout = {_ms(seconds)}; '
            f'SET enable_seqscan = {whole_tables}'
        )

    def abort(self) -> None:
        """Make a wait fail soon: the present wait, or the next."""
        self.aborted = True

    def check_wait(self, since: float) -> None:
        """Close the connection if a wait was broken off or takes too long.

        :param since: monotonic time at which the wait began
        :raises OperationalError: it was closed
        """
        limit = self.read_timeout
        waited = time.monotonic() - since
        if self.aborted or (limit and waited > limit):
            self.pgconn.finish()
            raise psycopg.OperationalError(f'no response for {waited:.1f} s')

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a generator of psycopg's to its end, within the limits."""
        return super().wait(self._checked(gen), *args, **kwargs)

    def _checked(self, gen: Any) -> Generator[Any, Any, Any]:
        since = self.waits_since = time.monotonic()
        try:
            awaited = next(gen)
            while True:
                ready = yield awaited
                if not ready:
                    self.check_wait(since)
                awaited = gen.send(ready)
        except StopIteration as end:
            self.aborted = False
            return end.value
        finally:
            self.waits_since = None


def check(args: Any, kwargs: Any) -> None:
    """Check the names of connection parameters.

    :raises psycopg.ProgrammingError: libpq does not have one of them
    """
    own = inspect.signature(psycopg.Connection.connect).parameters
    make_conninfo(
        *args, **{name: kwargs[name] for name in kwargs.keys() - own.keys()}
    )


def connect(args: Any, kwargs: Any, timeouts: Timeouts) -> PostgreSQLSession:
    """Open a connection."""
    limit_s = max(1, int(timeouts.response))
    defaults = {
        'application_name': APPLICATION,
        'connect_timeout': timeouts.connect,
        'keepalives_idle': limit_s,
        'keepalives_interval': 1,
        'keepalives_count': KEEPALIVES,
        'tcp_user_timeout': _ms(timeouts.response),
    }
    session = PostgreSQLSession.connect(*args, **{**defaults, **kwargs})
    # Of the statements that set it up, too.
    session.read_timeout = timeouts.connect
    return session


def set_up(session: PostgreSQLSession, timeouts: Timeouts) -> None:
    """Set the limits of a new connection, and how it plans and encodes."""
    session.statement_timeout = timeouts.statement
    session.whole_tables = timeouts.whole_tables
    before, session.autocommit = session.autocommit, True
    session.execute(_script(timeouts))
    query = f'SELECT pg_backend_pid(), {SERVER["postgresql"]}'
    [(pid, session.server)] = session.execute(query).fetchall()
    if pid == session.info.backend_pid:
        # Else there is a connection pooler in between.
        session.server_id = pid
    session.autocommit = before
    # And for columns, which are lists.
    session.adapters.register_dumper(list, _ListDumper)


def _script(timeouts: Timeouts) -> str:
    """Return the statements that a new connection begins with."""
    settings: dict[str, Any] = {
        'plan_cache_mode': 'force_generic_plan',
        'jit': 'off',
        # What a transaction reads after it waited for a lock has to include
        # what the holder of the lock committed.
        'default_transaction_isolation': "'read committed'",
        'statement_timeout': _ms(timeouts.statement),
        # A plan is kept. If it was made while a table was small and not yet
        # analyzed, it would read the whole table from then on.
        'enable_seqscan': timeouts.whole_tables,
    }
    if timeouts.lock:
        settings['lock_timeout'] = _ms(timeouts.lock)
    if timeouts.idle_transaction:
        limit = _ms(timeouts.idle_transaction)
        settings['idle_in_transaction_session_timeout'] = limit
    return '; '.join(f'SET {name} = {settings[name]}' for name in settings)


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


class Column(list[Any]):
    """The values of one column, all of one type or None.

    :cvar element: the type of the values, as the server numbers it
    """

    element = 0
    # Returns each value after its length.
    _encode_values: Callable[[], bytes]
    _encoded = b''

    def encode(self) -> bytes:
        """Return the array as the server takes it in binary format.

        That is a header, then each value after its length. It is encoded
        once, for all statements that have it.
        """
        if not self:
            return _header(0, 0, self.element, 0, 1)[:12]
        if not self._encoded:
            has_null = int(None in self)
            head = _header(1, has_null, self.element, len(self), 1)
            self._encoded = head + self._encode_values()
        return self._encoded


class TextColumn(Column):
    """A column of ``text``."""

    element = 25

    def _encode_values(self) -> bytes:
        if len(self) == 1 and self[0] is not None:
            only: bytes = self[0].encode()
            return _length(len(only)) + only
        parts: list[bytes] = []
        add = parts.append
        for value in self:
            if value is None:
                add(_NULL)
            else:
                encoded = value.encode()
                size = len(encoded)
                add(_LENGTHS[size] if size < _SHORT else _length(size))
                add(encoded)
        return b''.join(parts)


class IntegerColumn(Column):
    """A column of ``bigint``."""

    element = 20
    form = 'q'

    def _encode_values(self) -> bytes:
        if None in self:
            pack = struct.Struct(f'>i{self.form}').pack
            return b''.join(
                _NULL if value is None else pack(8, value) for value in self
            )
        count = len(self)
        with_lengths = [8] * (2 * count)
        with_lengths[1::2] = self
        return struct.pack('>' + f'i{self.form}' * count, *with_lengths)


class FloatColumn(IntegerColumn):
    """A column of ``double precision``."""

    element = 701
    form = 'd'


def column(values: list[Any]) -> Column:
    """Return a list as a column: of integers if the first is one."""
    if isinstance(values, Column):
        return values
    are_numbers = values and isinstance(values[0], int)
    return IntegerColumn(values) if are_numbers else TextColumn(values)


class _ListDumper(Dumper):
    format = pq.Format.BINARY

    def dump(self, obj: list[Any]) -> bytes:
        return column(obj).encode()


ARRAY_TYPES: dict[str, type[Column]] = {
    'text': TextColumn,
    'int': IntegerColumn,
    'float': FloatColumn,
}
