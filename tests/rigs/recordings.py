"""What the recording says, beside what callers know."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.cmd import adapters
from scheduler_service.store import schema
from scheduler_service.store.records import (
    daemons,
    decisions,
    playback,
    recorded_events,
)
from scheduler_service.store.records.recorded_events import Subject
from scheduler_service.store.records.steps import Steps
from tests.support.clouds import Cloud

# How many instances and decisions are looked at.
_SAMPLE = 30
_HERE, _NOT_HERE = ('claimed', 'seen'), ('gone', 'released')


def contradicted(
    cloud: Cloud, places: Mapping[str, set[str]], seed: int, is_late: bool
) -> list[str]:
    """Return statements of the recording that callers know better.

    :param places: instance -> the hosts that callers were told of
    :param is_late: whether daemons that were killed are known to be silent
    """
    rng = random.Random(seed)
    with cloud.store.reading() as conn:
        return [
            *(_gaps(conn, cloud) if is_late else ()),
            *(
                each.fault
                for each in playback.check_recordings(conn)
                if each.fault
            ),
            *_steps(conn, cloud),
            *_events(conn, places, rng),
            *_decisions(conn, rng),
        ]


def _gaps(conn: Any, cloud: Cloud) -> Iterator[str]:
    """A gap follows each run that did not stop, but for those that last."""
    runs = playback.runs(conn)
    killed = [run.daemon for run in runs if not run.stretches[-1].stops]
    named = [gap.daemon for gap in playback.missing(conn, runs)]
    if len(named) != len(killed) - len(cloud.running):
        states = [
            (row['name'], row['silent_for']) for row in daemons.listing(conn)
        ]
        yield f'killed or running {killed}, gaps of {named}, {states}'


def _steps(conn: Any, cloud: Cloud) -> Iterator[str]:
    """By the same configuration hosts are taken as they really were."""
    pipeline = adapters.engine(adapters.load([str(cloud.config)])).hosts
    steps = Steps(conn, 0.0, math.inf, lambda _: pipeline)
    for _ in steps.play():
        pass
    yield from map(str, steps.listed)
    yield from (each.why for each in steps.unread)


def _events(
    conn: Any, places: Mapping[str, set[str]], rng: random.Random
) -> Iterator[str]:
    """The last that is told of an instance is where it is."""
    known = [uuid for uuid, hosts in places.items() if hosts]
    for uuid in rng.sample(known, min(_SAMPLE, len(known))):
        here: dict[str, bool] = {}
        told = recorded_events.of_subject(conn, Subject(None, uuid), 0.0)
        for event in told:
            if event.host and event.event in (*_HERE, *_NOT_HERE):
                here[event.host] = event.event in _HERE
        if {host for host, is_here in here.items() if is_here} != places[uuid]:
            lines = [f'{e.daemon} {e.event} {e.host}' for e in told]
            yield f'{uuid} on {places[uuid]}, told {lines}'


def _decisions(conn: Any, rng: random.Random) -> Iterator[str]:
    """What was taken is what was replied."""
    table = schema.decisions.c
    query = sa.select(table.request_id).where(
        table.run.is_not(None), table.outcome == 'chosen'
    )
    ids = [*conn.execute(query.distinct()).scalars()]
    for request_id in rng.sample(ids, min(_SAMPLE, len(ids))):
        for row in decisions.show(conn, request_id):
            if row['outcome'] != 'chosen' or not row['recorded']:
                continue
            try:
                snapshot = playback.snapshot_of(conn, *row['recorded'])
            except errors.NotRecorded as fault:
                yield f'{request_id}: {fault}'
                continue
            uuids, entry = snapshot.request.instance_uuids, snapshot.entry
            taken = {
                uuids[at]: snapshot.table.host_at(each)
                for at, each in zip(entry.order, entry.rows, strict=True)
            }
            replied = {
                each['instance_uuid']: each['selected']['host']
                for each in row['placements']
            }
            if not taken.items() <= replied.items():
                yield f'{request_id}: took {taken}, replied {replied}'
