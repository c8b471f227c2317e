"""Host reports that were refused: how many of each host, and why the last.

A report is a cast, so its host does not learn that it was refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.store import clock, rows, schema
from scheduler_service.store.connection import Writer

_MAX_REASON = 1000


class Refusals(NamedTuple):
    """Reports of one service host that were refused.

    :ivar refused: how many
    :ivar reason: of the last one: the place, and what was expected there
    """

    refused: int
    reason: str

    def after(self, older: Refusals | None) -> Refusals:
        """Return these refusals together with older ones."""
        if older is None:
            return self
        return self._replace(refused=self.refused + older.refused)


def record(writer: Writer, refusals: Mapping[str, Refusals]) -> None:
    """Add refusals by service host."""
    conn, table = writer.conn, schema.refused_reports
    for host, added in sorted(refusals.items()):
        values = {
            'reason': added.reason[:_MAX_REASON],
            'refused_at': clock.NOW,
        }
        rows.insert_missing(
            conn, table, {'host': host, 'refused': 0, **values}
        )
        conn.execute(
            sa.update(table)
            .where(table.c.host == host)
            .values(refused=table.c.refused + added.refused, **values)
        )


def of_host(conn: Connection, host: str) -> Any:
    """Return the refusals of a service host, None where there were none.

    :return: with ``refused``, ``reason``, and ``refused_at`` of the last one,
        in seconds since the epoch, by the database's clock
    """
    table = schema.refused_reports
    return conn.execute(sa.select(table).where(table.c.host == host)).first()
