"""``scheduler-manage history``: what daemons saw and decided."""

from __future__ import annotations

from typing import Any

from scheduler_service import moments
from scheduler_service.cmd import output
from scheduler_service.cmd.connections import open_store
from scheduler_service.model.inventory import dashed
from scheduler_service.store import clock
from scheduler_service.store.records import events, history

_EVENT = [
    'at', 'daemon', 'event', 'host', 'instance', 'request_id', 'detail',
]  # fmt: skip
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


def of_host(args: Any, conf: Any) -> output.Listing:
    """List what happened to a host, as each daemon saw it."""
    return _events(args, conf, events.Subject(args.host, None))


def of_instance(args: Any, conf: Any) -> output.Listing:
    """List what happened to an instance, as each daemon saw it."""
    return _events(args, conf, events.Subject(None, dashed(args.instance)))


def _events(args: Any, conf: Any, subject: events.Subject) -> output.Listing:
    """List events; the status is 1 if a part of the time is not recorded."""
    with open_store(conf) as store, store.reading() as conn:
        since = moments.stamp(args.since, clock.read(conn))
        found = [*events.of_subject(conn, subject, since)]
        begins = [each.began_at for each in history.stretches(conn)]
    oldest = min(begins, default=None)
    if oldest is None:
        output.remark('Nothing is recorded')
    elif oldest > since:
        output.remark(f'The history goes back to {moments.text(oldest)}')
    rows = [
        {**event._asdict(), 'at': moments.text(event.at)}
        for event in sorted(found, key=lambda event: event.at)
    ]
    is_whole = (
        oldest is not None
        and oldest <= since
        and not any(event.event == 'gap' for event in found)
    )
    return output.Listing(rows, _EVENT, status=int(not is_whole))
