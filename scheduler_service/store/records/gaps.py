"""What the recordings of daemons lack, as far as that is known."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sqlalchemy.engine import Connection

from scheduler_service import errors, moments
from scheduler_service.store import clock
from scheduler_service.store.records import daemons, recordings
from scheduler_service.store.records.playback import Playback, RecordedEntry
from scheduler_service.store.records.recordings import Stretch


class Run(NamedTuple):
    """What a daemon recorded from its start on."""

    daemon: str
    stretches: Sequence[Stretch]


class Gap(NamedTuple):
    """A time of which a daemon recorded nothing that can be read.

    :ivar began_at: seconds since the epoch
    :ivar ended_at: when the next checkpoint was stored; None: there is none
    :ivar why: a sentence
    """

    daemon: str
    began_at: float
    ended_at: float | None
    why: str

    def sentence(self) -> str:
        until = 'now' if self.ended_at is None else moments.text(self.ended_at)
        return f'{self.why}: not recorded until {until}'


class Unread(NamedTuple):
    """Blocks of a run that are left out, since one cannot be read.

    :ivar first: its number
    :ivar last: number of the last block before the next checkpoint
    :ivar why: a sentence
    """

    run: int
    first: int
    last: int
    why: str


def read(
    playback: Playback, stretch: Stretch, unread: list[Unread]
) -> Iterator[RecordedEntry]:
    """Yield the entries of a stretch, as far as they can be read.

    :param unread: gets the block that cannot be read, if any
    """
    number = stretch.first
    try:
        for recorded in playback.play(*stretch[:3]):
            number = recorded.block.number + 1
            yield recorded
    except errors.NotRecorded as fault:
        why = str(fault.args[0])
        unread.append(Unread(stretch.run, number, stretch.last, why))


def runs(conn: Connection) -> list[Run]:
    """Return the runs of daemons, by the time of their begin."""
    every = recordings.stretches(conn, every=True)
    by_run = itertools.groupby(every, operator.attrgetter('run'))
    made = [[*some] for _, some in by_run]
    made.sort(key=lambda some: some[0].began_at)
    return [Run(recordings.daemon_of(conn, some), some) for some in made]


def missing(conn: Connection, every: Sequence[Run]) -> Iterator[Gap]:
    """Yield the gaps in runs, and after those that did not stop in order."""
    signing = {
        row['name']
        for row in daemons.listing(conn)
        if row['silent_for'] <= daemons.SILENT_S
    }
    # One that starts records before it is registered.
    before = clock.read(conn) - daemons.SILENT_S
    for name, stretches in every:
        for each, after in itertools.pairwise(stretches):
            if after.begins == recordings.LOST:
                why = 'Not everything could be stored'
                yield Gap(name, each.ended_at, after.began_at, why)
        last = stretches[-1]
        is_other, until = next_checkpoint(every, name, last)
        is_dead = not is_other or (
            name not in signing and last.ended_at < before
        )
        if is_dead and not last.stops:
            why = 'The daemon did not stop in order'
            yield Gap(name, last.ended_at, until, why)


def next_checkpoint(
    every: Sequence[Run], daemon: str, stretch: Stretch
) -> tuple[bool, float | None]:
    """Return when the next checkpoint after a stretch was stored, if any was.

    By the daemon, else by any, and whether it is by another one.
    """
    later = (
        (run.daemon != daemon, each.began_at)
        for run in every
        for each in run.stretches
        if each.begins > recordings.NO
        and (
            each.first > stretch.last
            if each.run == stretch.run
            else each.began_at >= stretch.ended_at
        )
    )
    return min(later, default=(True, None))
