"""``scheduler-manage history``: what daemons saw and decided."""

from __future__ import annotations

from typing import Any

from scheduler_service import moments
from scheduler_service.cmd import output
from scheduler_service.cmd.connections import open_store
from scheduler_service.model.inventory import dashed
from scheduler_service.store import clock
from scheduler_service.store.records import daemons, playback, recordings
from scheduler_service.store.records.recorded_events import Subject, of_subject

_EVENT = [
    'at', 'daemon', 'event', 'host', 'instance', 'request_id', 'user',
    'detail',
]  # fmt: skip
_LOGGED = ['begun_at', 'ended_at', 'event', 'who', 'detail']
_COLUMNS = ['daemon', 'began_at', 'ended_at', 'blocks', 'decisions', 'fault']


def check(args: Any, conf: Any) -> output.Listing:
    """List what can be made again, with what is wrong with it."""
    with open_store(conf) as store, store.reading() as conn:
        rows: list[tuple[Any, ...]] = [
            (each.daemon, each.stretch.began_at, each.stretch.ended_at,
             each.stretch.last - each.stretch.first + 1, each.decisions,
             each.fault)
            for each in playback.check_recordings(conn)
        ]  # fmt: skip
        rows += [
            (gap.daemon, gap.began_at, gap.ended_at, 0, 0, gap.why)
            for gap in playback.missing(conn, playback.runs(conn))
        ]
    made = [
        _in_text(dict(zip(_COLUMNS, row, strict=True)), 'began_at')
        for row in rows
    ]
    status = int(any(row['fault'] for row in made))
    return output.Listing(made, _COLUMNS, status=status)


def _in_text(row: dict[str, Any], began_at: str) -> dict[str, Any]:
    """Return a row with the times of its begin and its end as texts."""
    ended_at = row['ended_at'] and moments.text(row['ended_at'])
    return row | {began_at: moments.text(row[began_at]), 'ended_at': ended_at}


def of_host(args: Any, conf: Any) -> output.Listing:
    """List what happened to a host, as each daemon saw it."""
    return _events(args, conf, Subject(args.host, None))


def of_instance(args: Any, conf: Any) -> output.Listing:
    """List what happened to an instance, as each daemon saw it."""
    return _events(args, conf, Subject(None, dashed(args.instance)))


def _events(args: Any, conf: Any, subject: Subject) -> output.Listing:
    """List events; the status is 1 if there is a gap."""
    with open_store(conf) as store, store.reading() as conn:
        since = moments.stamp(args.since, clock.read(conn))
        happened = of_subject(conn, subject, since)
        begins = [each.began_at for each in recordings.stretches(conn)]
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
        happened = [
            *daemons.since(conn, since),
            *daemons.lasting(daemons.listing(conn)),
        ]
        output.say_oldest(daemons.oldest(conn), since)
    rows = [
        _in_text(row, 'begun_at')
        for row in sorted(happened, key=lambda row: row['begun_at'])
    ]
    return output.Listing(rows, _LOGGED)
