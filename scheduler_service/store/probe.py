"""Asks the database for signs of life, and who blocks our sessions.

A :class:`Probe` belongs to one thread and has a connection of its own, so
that it answers while all others wait.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from oslo_db import exception as db_exception
from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.store.connection import Store, translate_errors
from scheduler_service.store.sessions import Wait

LOG = logging.getLogger(__name__)
# A wait for a lock is looked at after so many seconds.
_SINCE_S = 1
# Sessions that block others and are not blocked themselves.
_BLOCKERS = {
    'postgresql': f"""
        SELECT DISTINCT b.pid AS id, b.usename AS login,
            b.application_name AS program,
            COALESCE(host(b.client_addr), 'local') AS host, b.state AS state,
            CAST(extract(epoch FROM clock_timestamp() - b.xact_start)
                AS integer) AS seconds
        FROM pg_stat_activity AS w
        CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) AS p(pid)
        JOIN pg_stat_activity AS b ON b.pid = p.pid
        WHERE w.datname = current_database() AND w.wait_event_type = 'Lock'
            AND w.usename = current_user
            AND clock_timestamp() - w.state_change > interval '{_SINCE_S} s'
            AND cardinality(pg_blocking_pids(b.pid)) = 0
        ORDER BY 1
    """,  # noqa: S608
    'mysql': f"""
        SELECT DISTINCT b.trx_mysql_thread_id AS id, s.user AS login,
            'MariaDB client' AS program, s.host AS host,
            CASE s.command WHEN 'Sleep' THEN 'idle in transaction'
                ELSE 'active' END AS state,
            TIMESTAMPDIFF(SECOND, b.trx_started, NOW()) AS seconds
        FROM information_schema.innodb_lock_waits AS l
        JOIN information_schema.innodb_trx AS w
            ON w.trx_id = l.requesting_trx_id
        JOIN information_schema.innodb_trx AS b
            ON b.trx_id = l.blocking_trx_id
        JOIN information_schema.processlist AS s
            ON s.id = b.trx_mysql_thread_id
        WHERE b.trx_state <> 'LOCK WAIT'
            AND w.trx_wait_started <= NOW() - INTERVAL {_SINCE_S} SECOND
        ORDER BY 1
    """,  # noqa: S608
}

# Sessions that the server believes to wait for their client, be it for the
# rest of a statement.
_IDLE = {
    'postgresql': sa.text("""
        SELECT pid FROM pg_stat_activity
        WHERE pid IN :ids AND (
            state <> 'active' OR wait_event = 'ClientRead'
        )
    """),
    'mysql': sa.text("""
        SELECT id FROM information_schema.processlist
        WHERE id IN :ids AND command = 'Sleep'
    """),
}
# Sessions of this user that are at least so old: a server that was started
# again may have given a number to another.
_OLD = {
    'postgresql': sa.text("""
        SELECT pid FROM pg_stat_activity
        WHERE pid = :id AND usename = current_user AND backend_start
            <= clock_timestamp() - CAST(:seconds AS float) * interval '1 s'
    """),
    'mysql': sa.text("""
        SELECT id FROM information_schema.processlist
        WHERE id = :id AND user = SUBSTRING_INDEX(CURRENT_USER(), '@', 1)
            AND :seconds <= (
                SELECT CAST(variable_value AS double)
                FROM information_schema.global_status
                WHERE variable_name = 'UPTIME'
            )
    """),
}
_END = {
    'postgresql': sa.text('SELECT pg_terminate_backend(:id)'),
    'mysql': sa.text('KILL CONNECTION :id'),
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
        self._limits = store.timeouts
        self._conn: Connection | None = None

    def ask(self) -> None:
        """Wait for a sign of life.

        :raises StoreUnavailable: there was none in ``response`` seconds
        """
        if self._limits is not self._watched.timeouts:
            self._limits = self._watched.timeouts
            self._drop()
            self._store.use_timeouts(self._limits.for_probe())
        self._rows(sa.text('SELECT 1'))

    def cut_off(self, seconds: float) -> list[Wait]:
        """Return the sessions that wait for an answer and will get none.

        The server does not work at anything for them: a device in between
        has dropped their connection without a word.

        :param seconds: those that have been waiting for longer
        :raises StoreUnavailable: the database does not answer
        """
        waits = {one.server_id: one for one in self._watched.waits(seconds)}
        if not waits:
            return []
        query = _IDLE[self._store.dialect].bindparams(
            sa.bindparam('ids', list(waits), expanding=True)
        )
        return [waits[found] for found in self._rows(query).scalars()]

    def end(self, waits: Sequence[Wait]) -> None:
        """Have the server end sessions that were closed while they waited.

        It may not know that: the locks of a transaction would stay until
        ``idle_transaction``, and all daemons would wait for them.

        :raises StoreUnavailable: the database does not answer
        """
        dialect = self._store.dialect
        for wait in waits:
            old = _OLD[dialect].bindparams(
                id=wait.server_id, seconds=time.monotonic() - wait.since
            )
            # It is over by now, or the server does not let this user see it
            # or end it.
            with contextlib.suppress(sa.exc.DBAPIError, db_exception.DBError):
                for found in self._rows(old).scalars().all():
                    self._rows(_END[dialect].bindparams(id=found))
                    LOG.info(
                        'Ended session %s in the database: its connection '
                        'does not work',
                        found,
                    )

    def blockers(self) -> list[str]:
        """Return who blocks daemons for longer than a second.

        :return: one text for each session; none where the database cannot
            tell, or may not tell this user
        :raises StoreUnavailable: the database does not answer
        """
        try:
            rows = self._rows(sa.text(_BLOCKERS[self._store.dialect])).all()
        except errors.StoreTimeout:
            return []
        except (sa.exc.DBAPIError, db_exception.DBError):
            return []
        return [
            f'session {row.id} ({row.program}, user {row.login} from '
            f'{row.host}, {row.state} for {row.seconds} s)'
            for row in rows
        ]

    def _rows(self, query: sa.TextClause) -> sa.CursorResult[Any]:
        try:
            with translate_errors():
                return self._connection().execute(query)
        except errors.StoreUnavailable:
            self._drop()
            raise

    def close(self) -> None:
        """Close its connection."""
        self._drop()
        self._store.dispose()

    def _connection(self) -> Connection:
        if self._conn is None:
            self._conn = self._store.hold().execution_options(
                isolation_level='AUTOCOMMIT'
            )
        return self._conn

    def _drop(self) -> None:
        if self._conn is not None:
            with contextlib.suppress(Exception):
                self._conn.invalidate()
                self._conn.close()
        self._conn = None
