"""Plays recordings back: the host table before each entry, made again.

Any state is made again by what made it in the daemon: ``Update.apply``,
``Release.apply`` and ``Overlay``. A decision's row of ``decisions`` names its
place (``run``, ``block``, ``place``), for :func:`snapshot_of`.

A :class:`Gap` is what the recordings of daemons lack, as far as that is
known.
"""

from __future__ import annotations

import collections
import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy.engine import Connection

from scheduler_service import errors, moments
from scheduler_service.columns import HostTable, Overlay
from scheduler_service.columns.changes import Release, Update
from scheduler_service.engine.journal import Ended, PodPlaced
from scheduler_service.model import Request
from scheduler_service.pipeline.selection import placed_by
from scheduler_service.store import clock
from scheduler_service.store.records import daemons, recordings
from scheduler_service.store.records.recording_format import (
    Block,
    Entry,
    RecordedDecision,
    Section,
    checkpoint_table,
    encode,
)
from scheduler_service.store.records.recordings import Reader, Stretch

# A decision, a refusal too, or a pod; and the block that it is in.
Assumed = tuple[RecordedDecision | PodPlaced, Block]


class RecordedEntry(NamedTuple):
    """An entry of a recording, and what it meets.

    :ivar entry: a table in place of the last section of its checkpoint
    :ivar place: index in the block
    :ivar overlay: has the table before the entry, with all that is assumed;
        None: it is not known
    :ivar ended: decisions and pods that were assumed until this entry, and
        refusals, once nothing is left that was assumed before them
    :ivar is_claimed: whether these are claimed, or come to nothing
    """

    entry: Entry | HostTable
    block: Block
    place: int
    overlay: Overlay | None = None
    ended: Sequence[Assumed] = ()
    is_claimed: bool = True


class Playback:
    """Goes through recordings, and makes a daemon's table again.

    :param has_tables: whether entries come with the table before them
    :ivar overlay: has the table, with all that is assumed; None: before the
        end of the first checkpoint, and once it is taken
    """

    def __init__(self, conn: Connection, has_tables: bool = True) -> None:
        self.overlay: Overlay | None = None
        self.has_tables = has_tables
        self._conn = conn
        self._waiting = collections.deque[Assumed]()

    def take_table(self) -> HostTable:
        """Take the table: what came last is not applied to it any more."""
        assert self.overlay is not None
        overlay, self.overlay, self.has_tables = self.overlay, None, False
        return overlay.table

    def play(self, run: int, first: int, last: int) -> Iterator[RecordedEntry]:
        """Yield the entries of blocks, each before it is applied.

        The blocks begin with a checkpoint, unless there are no tables. With
        its end comes the table that earlier blocks led to, to be compared.

        :raises NotRecorded: a block cannot be read, or no checkpoint comes
            before an entry
        """
        reader, sections = Reader(self._conn, run), list[Section]()
        overlay: Overlay | None = None
        for block, place, read in reader.entries(first, last):
            entry: Entry | HostTable = read
            if isinstance(read, Section) and self.has_tables:
                sections.append(read)
                if read.what == 'end':
                    entry, overlay = checkpoint_table(sections), self.overlay
                    sections = []
            elif isinstance(read, RecordedDecision | PodPlaced) and (
                overlay or not self.has_tables
            ):
                self._waiting.append((read, block))
            yield RecordedEntry(
                entry, block, place, overlay, *self._ended(entry)
            )
            if not self.has_tables:
                overlay = None
            elif isinstance(entry, HostTable):
                overlay = self.overlay = Overlay(entry)
            elif isinstance(entry, Section):
                continue
            elif overlay is not None:
                _apply(entry, block, overlay)
            else:
                raise errors.NotRecorded(
                    'The history does not begin with a checkpoint'
                )

    def _ended(
        self, entry: Entry | HostTable
    ) -> tuple[Sequence[Assumed], bool]:
        """Return what ends with an entry, and whether it is claimed."""
        count, ended = 0.0, []
        if isinstance(entry, Ended):
            count = entry.claimed if entry.claimed >= 0 else math.inf
        elif isinstance(entry, HostTable):
            count = math.inf
        while self._waiting and self._waiting[0][0].assumes <= count:
            ended.append(self._waiting.popleft())
            count -= ended[-1][0].assumes
        return ended, count < math.inf


def _apply(entry: Entry, block: Block, overlay: Overlay) -> None:
    """Apply an entry as the engine did."""
    if isinstance(entry, RecordedDecision):
        if not entry.error:
            assume(overlay, block.request(entry), entry)
    elif isinstance(entry, PodPlaced | Ended):
        entry.apply(overlay)
    elif isinstance(entry, Update):
        overlay.table = entry.apply(overlay.table)
    elif isinstance(entry, Release):
        entry.apply(overlay.table)


def assume(
    overlay: Overlay,
    asked: Request,
    entry: RecordedDecision,
    count: int | None = None,
) -> None:
    """Assume the instances of a decision, the first *count*, or all."""
    table = overlay.table
    overlay.assume_many(
        entry.rows[:count],
        asked.resources,
        [
            placed_by(asked, uuid, table.host_at(row), table.node_at(row))
            for uuid, row in entry.placed[:count]
        ],
        asked.instance_group,
    )


class SnapshotAt:
    """What a decision was made on.

    :ivar block: that the decision is recorded in
    :ivar entry: the decision
    :ivar request: for which hosts were selected
    :ivar table: as the filters saw it for the first of the instances that were
        left; :meth:`place` goes on to the next ones
    :ivar turn: how many instances are placed
    """

    def __init__(
        self, overlay: Overlay, entry: RecordedDecision, block: Block
    ) -> None:
        self._overlay, self.entry, self.block = overlay, entry, block
        self.request = block.request(entry)
        self.table = overlay.table
        self.table.find_groups(self.request)
        if entry.lent is not None:
            rows, amounts = entry.lent
            overlay.lend(np.array(rows, np.intp), amounts)
        self._start = overlay.begin()
        self.place(entry.earlier)

    @property
    def taken(self) -> int | None:
        """Row of the host that was taken next; None: none was."""
        rows = self.entry.rows
        return rows[self.turn] if self.turn < len(rows) else None

    def place(self, count: int) -> None:
        """Have the first *count* instances placed, in the recorded order."""
        entry, asked, self.turn = self.entry, self.request, count
        self._overlay.forget(self._start)
        self._overlay.end()
        self._start = self._overlay.begin(asked.num_instances > 1)
        if count:
            assume(self._overlay, asked, entry, count)
        left = [*range(len(asked.instance_uuids))]
        for at in entry.order[:count]:
            left.remove(at)
        if left:
            asked.placing = asked.instance_uuids[left[0]]

    def leave(self) -> None:
        """Take back what :meth:`place` did, for the entries that follow."""
        self._overlay.forget(self._start)
        self._overlay.end()
        self._overlay.take_back()


def snapshot_of(
    conn: Connection, run: int, number: int, index: int
) -> SnapshotAt:
    """Return what a decision was made on.

    :param number: of its block
    :param index: in its block
    :raises NotRecorded: the recording lacks it, or cannot be read
    """
    first = recordings.first_of_stretch(conn, run, number)
    for recorded in Playback(conn).play(run, first, number):
        entry, block, at, overlay, *_ = recorded
        if (block.number, at) == (number, index):
            if not isinstance(entry, RecordedDecision) or overlay is None:
                break
            return SnapshotAt(overlay, entry, block)
    raise errors.NotRecorded(
        f'Block {number} of run {run} has no such decision'
    )


class Checked(NamedTuple):
    """A stretch that was made again.

    :ivar daemon: the name of the daemon whose it is
    :ivar decisions: how many it has
    :ivar fault: why it cannot be read, or what of the checkpoint that follows
        differs; empty: nothing
    """

    stretch: Stretch
    daemon: str
    decisions: int
    fault: str


def check_recordings(conn: Connection) -> Iterator[Checked]:
    """Make each stretch again, and compare with the checkpoint after it."""
    playback, end = Playback(conn), (0, 0)
    for stretch in recordings.stretches(conn, every=True):
        if not stretch.follows or end != (stretch.run, stretch.first):
            playback = Playback(conn)
        daemon, decisions, fault = '', 0, ''
        try:
            for entry, block, _, before, *_ in playback.play(*stretch[:3]):
                daemon = block.daemon
                decisions += isinstance(entry, RecordedDecision)
                if isinstance(entry, HostTable) and before is not None:
                    fault = ', '.join(differing(before.table, entry))
            end = stretch.run, stretch.last + 1
        except errors.NotRecorded as error:
            fault, end = str(error.args[0]), (0, 0)
        yield Checked(stretch, daemon, decisions, fault)


def differing(one: HostTable, other: HostTable) -> list[str]:
    """Return what of two tables differs, by name."""
    first, second = _contents(one), _contents(other)
    names = sorted(first.keys() | second.keys())
    return [name for name in names if first.get(name) != second.get(name)]


def _contents(table: HostTable) -> dict[str, Any]:
    """Return what a table consists of, by name, to be compared."""
    every = np.arange(len(table))
    coded = table.coded.items()
    return {
        'hosts': table.ids.tolist(),
        **{name: column.tobytes() for name, column in table.numbers.items()},
        **{name: column.values_at(every) for name, column in coded},
        **{name: encode(of) for name, of in table.resources.items()},
        'shared': encode(table.shared),
        'aggregates': table.topology.aggregates,
        'instances': {placed.uuid: placed for placed in table.instances},
        'groups': table.groups,
    }


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
