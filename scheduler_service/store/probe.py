"""Probes the database, and ends sessions whose connections do not work.

Any thread may call :func:`check_write`. A :class:`Probe` belongs to one thread
and has a connection of its own, so that it works while all other threads wait.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exception

from scheduler_service import errors
from scheduler_service.store import schema
from scheduler_service.store.connection import KeptConnection, Store
from scheduler_service.store.driver_errors import (
    is_timeout,
    translate_errors,
    unavailable,
)
from scheduler_service.store.sessions import SERVER, Wait

LOG = logging.getLogger(__name__)
# Sessions of this user: their server, whether it believes to wait for the
# client, be it for the rest of a statement, and their age in seconds. MariaDB
# has no age.
_OWN_SESSIONS = {
    'postgresql': sa.text(f"""
        SELECT pid AS id, {SERVER['postgresql']} AS server,
            state <> 'active' OR wait_event = 'ClientRead' AS idle,
            EXTRACT(epoch FROM clock_timestamp() - backend_start) AS age
        FROM pg_stat_activity
        WHERE pid IN :ids AND usename = current_user
    """),  # noqa: S608
    'mysql': sa.text(f"""
        SELECT id, {SERVER['mysql']} AS server, command = 'Sleep' AS idle,
            NULL AS age
        FROM information_schema.processlist
        WHERE id IN :ids AND user = SUBSTRING_INDEX(CURRENT_USER(), '@', 1)
    """),  # noqa: S608
}
_UPTIME = sa.text("SHOW GLOBAL STATUS LIKE 'Uptime'")
_END = {
    'postgresql': sa.text('SELECT pg_terminate_backend(:id)'),
    'mysql': sa.text('KILL CONNECTION :id'),
}


# What claims and releases insert into or, in ``inventories``, change.
_CLAIMED = (
    schema.instances,
    schema.moves,
    schema.allocations,
    schema.inventories,
    schema.changes,
    schema.outcomes,
    schema.releases,
)
# As many rows as a batch has. With long names they fill a page, at least, of
# each table and of its keys, whatever room there is in pages that exist.
_ROWS = 64
_LONG = 256


def check_write(store: Store) -> None:
    """Write as much as claims do, take it back, and commit.

    A full disk takes what fits into pages that exist. No other session sees
    the rows.

    :raises StoreUnavailable: the database cannot be written to
    """
    unique = secrets.token_hex(12)
    with translate_errors(), store.engine.begin() as conn:
        for table in _CLAIMED:
            rows = [_row(table, f'{unique}{n:04}') for n in range(_ROWS)]
            conn.execute(table.insert(), rows)
            key = table.primary_key.columns[0]
            keys = [row[key.name] for row in rows]
            conn.execute(sa.delete(table).where(key.in_(keys)))


def _row(table: sa.Table, unique: str) -> dict[str, Any]:
    """Return a row with long texts, and numbers that no other row has.

    The texts have the columns' lengths, and cannot be compressed.

    :param unique: what the texts begin with, and hexadecimal digits
    """
    number = -int(unique[-15:], 16)
    text = (unique + secrets.token_hex(_LONG))[:_LONG]
    return {
        column.name: text[: column.type.length]
        if isinstance(column.type, sa.String)
        else number
        for column in table.columns
    }


class Probe:
    """A connection that only asks whether the database answers.

    :param store: whose database it is; never of SQLite
    """

    def __init__(self, store: Store) -> None:
        self._watched = store
        self._store = Store.connect(
            store.engine.url.render_as_string(hide_password=False),
            store.timeouts.for_probe(),
            max_pool_size=1,
            max_overflow=0,
        )
        self._dialect = self._store.dialect
        self._limits = store.timeouts
        self._kept = KeptConnection(self._store, isolation_level='AUTOCOMMIT')

    def ask(self) -> None:
        """Wait for a sign of life.

        :raises StoreUnavailable: there was none in ``response`` seconds
        """
        if self._limits is not self._watched.timeouts:
            self._limits = self._watched.timeouts
            self._kept.drop()
            self._store.timeouts = self._limits.for_probe()
        was_open, start = self._kept.is_open, time.monotonic()
        try:
            self._select()
        except errors.StoreUnavailable:
            took = time.monotonic() - start
            if not was_open or took > self._store.timeouts.response / 2:
                raise
            # Somebody ended the session: a new one shows what that means.
            self._select()

    def _select(self) -> None:
        try:
            with translate_errors():
                self._kept.get().execute(sa.text('SELECT 1'))
        except errors.StoreUnavailable:
            self._kept.drop()
            raise

    def cut_off(self, seconds: float) -> list[Wait]:
        """Return the sessions that wait for an answer and will get none.

        The server does not work at anything for them: a device in between
        has dropped their connection without a word.

        :param seconds: those that have been waiting for longer
        :raises StoreTimeout: the query takes too long
        :raises StoreUnavailable: the database does not answer
        """
        waits = self._on_server(self._watched.sessions.waits(seconds))
        return [w for w, idle in waits if idle and not w.is_sending]

    def end(self, waits: Sequence[Wait]) -> None:
        """Have the server end sessions that were closed while they waited.

        It may not know that: the locks of a transaction would stay until
        ``idle_transaction``, and all daemons would wait for them.

        :raises StoreTimeout: the query takes too long
        :raises StoreUnavailable: the database does not answer
        """
        for wait, _ in self._on_server(waits):
            self._optional(_END[self._dialect].bindparams(id=wait.server_id))
            LOG.info(
                'Ended session %s in the database: its connection does not '
                'work',
                wait.server_id,
            )

    def _on_server(self, waits: Sequence[Wait]) -> list[tuple[Wait, bool]]:
        """Return the waits of sessions that the server has, and which idle."""
        if not waits:
            return []
        listed = {wait.server_id: wait for wait in waits}
        query = _OWN_SESSIONS[self._dialect].bindparams(
            sa.bindparam('ids', list(listed), expanding=True)
        )
        rows = self._optional(query)
        longest = 0.0
        if rows and self._dialect == 'mysql':
            # No session is older than the server, which counts whole seconds.
            uptime = self._optional(_UPTIME)
            longest = sum(float(row.Value) + 1 for row in uptime)
        sessions = []
        for row in rows:
            wait = listed[row.id]
            age = longest if row.age is None else float(row.age)
            # Another server, or a restarted one, may have given the number to
            # another session.
            if row.server == wait.session.server and age >= wait.seconds:
                sessions.append((wait, bool(row.idle)))
        return sessions

    def _optional(self, query: sa.TextClause) -> Sequence[sa.Row[Any]]:
        """Return the rows of a query; none where the server refuses it.

        It may lack the tables, or not let this user read them.

        :raises StoreTimeout: it takes too long
        :raises StoreUnavailable: the database does not answer
        """
        try:
            result = self._kept.get().execute(query)
            return result.all() if result.returns_rows else []
        except (sa.exc.DBAPIError, db_exception.DBError) as fault:
            if is_timeout(fault):
                raise errors.StoreTimeout(
                    'The database takes too long to list its sessions'
                ) from fault
            if self._kept.is_open and not self._kept.get().invalidated:
                return []
            self._kept.drop()
            raise unavailable(fault) from fault

    def close(self) -> None:
        """Close its connection."""
        self._kept.drop()
        self._store.dispose()
