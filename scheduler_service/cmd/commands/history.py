"""``scheduler-manage history``: what daemons saw and decided."""

from __future__ import annotations

from typing import Any

from scheduler_service import moments
from scheduler_service.cmd import output
from scheduler_service.cmd.connections import open_store
from scheduler_service.model.inventory import dashed
from scheduler_service.store import clock
from scheduler_service.store.records import (
    daemons,
    event_log,
    events,
    gaps,
    history,
)

_EVENT = [
    'at', 'daemon', 'event', 'host', 'instance', 'request_id', 'user',
    'detail',
]  # fmt: skip
_LOGGED = ['begun_at', 'ended_at', 'event', 'who', 'detail']
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
        rows += [
            {
                'daemon': gap.daemon,
                'began_at': moments.text(gap.began_at),
                'ended_at': gap.ended_at and moments.text(gap.ended_at),
                'blocks': 0,
                'decisions': 0,
                'fault': gap.why,
            }
            for gap in gaps.missing(conn, gaps.runs(conn))
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
    """List events; the status is 1 if there is a gap."""
    with open_store(conf) as store, store.reading() as conn:
        since = moments.stamp(args.since, clock.read(conn))
        happened = events.of_subject(conn, subject, since)
        begins = [each.began_at for each in history.stretches(conn)]
    output.say_oldest(min(begins, default=None), since)
    rows = [
        {**event._asdict(), 'at': moments.text(event.at)} for event in happened
    ]
    status = int(any(event.event == 'gap' for event in happened))
    return output.Listing(rows, _EVENT, status=status)


def of_daemons(args: Any, conf: Any) -> output.Listing:
    """List what happened to daemons, and what operators did."""
    with open_store(conf) as store, store.reading() as conn:
        since = moments.stamp(args.since, clock.read(conn))
        happened = [*event_log.since(conn, since), *daemons.lasting(conn)]
        output.say_oldest(event_log.oldest(conn), since)
    rows = [
        {
            **row,
            'begun_at': moments.text(row['begun_at']),
            'ended_at': row['ended_at'] and moments.text(row['ended_at']),
        }
        for row in sorted(happened, key=lambda row: row['begun_at'])
    ]
    return output.Listing(rows, _LOGGED)
