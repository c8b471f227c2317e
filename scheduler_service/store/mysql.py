"""The driver of MariaDB and MySQL: sessions, their settings and limits.

A connection belongs to one thread at a time; any thread may abort its wait.
"""

from __future__ import annotations

import contextlib
import inspect
import operator
import socket
import time
from typing import Any

import pymysql
from pymysql.constants import SERVER_STATUS

from scheduler_service.store.sessions import (
    APPLICATION,
    KEEPALIVES,
    SERVER,
    Session,
    Timeouts,
)

_TCP = socket.IPPROTO_TCP
_NO_ESCAPES = SERVER_STATUS.SERVER_STATUS_NO_BACKSLASH_ESCAPES
# What has a meaning in the text of a statement, the backslash first.
_ESCAPES = (
    ('\\', '\\\\'),
    ("'", "\\'"),
    ('"', '\\"'),
    ('\n', '\\n'),
    ('\r', '\\r'),
    ('\0', '\\0'),
    ('\x1a', '\\Z'),
)


class MySQLSession(
    pymysql.connections.Connection,  # type: ignore[misc]
    Session,
):
    """A connection to MariaDB or MySQL whose waits another thread can end."""

    def escape(self, obj: Any, mapping: Any = None) -> str:
        """Return a value as it stands in a statement.

        The library looks at each character of a text by itself: 193
        microseconds for 10 KB of JSON, 39 so.
        """
        if isinstance(obj, str) and not self.server_status & _NO_ESCAPES:
            for character, escaped in _ESCAPES:
                obj = obj.replace(character, escaped)
            return f"'{obj}'"
        escaped_value: str = super().escape(obj, mapping)
        return escaped_value

    def _read_query_result(self, *args: Any, **kwargs: Any) -> Any:
        self.waits_since = time.monotonic()
        try:
            return super()._read_query_result(*args, **kwargs)
        finally:
            self.waits_since = None

    def _read_ok_packet(self) -> Any:
        self.waits_since = time.monotonic()
        try:
            return super()._read_ok_packet()
        finally:
            self.waits_since = None

    @property
    def is_mariadb(self) -> bool:
        """Whether the server is MariaDB, which has more limits than MySQL."""
        return 'MariaDB' in self.get_server_info()

    def limit_statements(self, seconds: float, whole_tables: bool) -> None:
        """Have the server end statements that take longer; 0: no limit.

        :param whole_tables: of no effect: the server plans every statement
        """
        if self.is_mariadb:
            with self.cursor() as cursor:
                cursor.execute(f'SET SESSION max_statement_time = {seconds}')

    @property
    def closed(self) -> bool:
        """Whether it was closed, by whatever reason."""
        return not self.open

    # Seconds that one read may take; None: no limit.
    read_timeout = property(
        operator.attrgetter('_read_timeout'),
        lambda self, value: setattr(self, '_read_timeout', value),
    )

    def fileno(self) -> int:
        """Return the descriptor of the connection's socket, if it is open."""
        descriptor: int = self._sock.fileno()
        return descriptor

    def abort(self) -> None:
        """Make a wait that is under way fail; the connection is of no use."""
        # It may be closed already.
        with contextlib.suppress(OSError, AttributeError):
            self._sock.shutdown(socket.SHUT_RDWR)


def check(args: Any, kwargs: Any) -> None:
    """Check the names of connection parameters.

    :raises TypeError: the driver does not have one of them
    """
    inspect.signature(pymysql.connections.Connection).bind(*args, **kwargs)


def connect(args: Any, kwargs: Any, timeouts: Timeouts) -> MySQLSession:
    """Open a connection to MariaDB or MySQL."""
    defaults = {
        'program_name': APPLICATION,
        'connect_timeout': timeouts.connect or None,
        # Of the greeting, and of the statements that set it up.
        'read_timeout': timeouts.connect or None,
        'write_timeout': timeouts.response or None,
    }
    return MySQLSession(*args, **{**defaults, **kwargs})


def set_up(session: MySQLSession, timeouts: Timeouts) -> None:
    """Set the limits of a new connection."""
    session.statement_timeout = timeouts.statement
    session.whole_tables = timeouts.whole_tables
    if timeouts.response:
        # Have the kernel give up a peer that acknowledges nothing. A local
        # socket has none of these options.
        seconds = timeouts.response
        with contextlib.suppress(OSError):
            for level, name, value in (
                (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
                (_TCP, socket.TCP_KEEPIDLE, max(1, int(seconds))),
                (_TCP, socket.TCP_KEEPINTVL, 1),
                (_TCP, socket.TCP_KEEPCNT, KEEPALIVES),
                (_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000)),
            ):
                session._sock.setsockopt(level, name, value)
    settings: dict[str, float] = {}
    if timeouts.lock:
        # Whole seconds, at least 1.
        seconds = max(1, round(timeouts.lock))
        settings['innodb_lock_wait_timeout'] = seconds
        settings['lock_wait_timeout'] = seconds
    if session.is_mariadb:
        settings['max_statement_time'] = timeouts.statement
        if timeouts.idle_transaction:
            seconds = max(1, round(timeouts.idle_transaction))
            settings['idle_transaction_timeout'] = seconds
    listed = ', '.join(f'{n} = {v}' for n, v in settings.items())
    with session.cursor() as cursor:
        if listed:
            cursor.execute(f'SET SESSION {listed}')
        cursor.execute(f'SELECT CONNECTION_ID(), {SERVER["mysql"]}')
        number, session.server = cursor.fetchone()
        if number == session.thread_id():
            # Else there is a proxy in between.
            session.server_id = number
