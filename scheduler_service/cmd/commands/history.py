"""``scheduler-manage history``: what daemons saw and decided."""

from __future__ import annotations

from typing import Any

from scheduler_service import moments
from scheduler_service.cmd import output
from scheduler_service.cmd.connections import open_store
from scheduler_service.store.records import history

_COLUMNS = ['daemon', 'began_at', 'ended_at', 'blocks', 'decisions', 'fault']


def check(args: Any, conf: Any) -> output.Listing:
    """List what can be made again, with what is wrong with it."""
    with open_store(conf) as store, store.reading() as conn:
        rows = [
            {
                'daemon': each.daemon,
                'began_at': moments.text(each.stretch.began_at),
                'ended_at': moments.text(each.stretch.ended_at),
                'blocks': each.stretch.last - each.stretch.first + 1,
                'decisions': each.decisions,
                'fault': each.fault,
            }
            for each in history.check(conn)
        ]
    status = int(any(row['fault'] for row in rows))
    return output.Listing(rows, _COLUMNS, status=status)
