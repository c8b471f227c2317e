"""Has what daemons recorded decided again: step by step, and onward.

Step by step, each run of a daemon is gone through by itself, with the table
that it had. At each decision the configuration decides instance by instance,
each after the real hosts of those before it; then what was really selected is
applied.

Onward, a simulation goes through what daemons recorded. At any time one
daemon's recording is followed. Its own requests come when their claims are
made, those of other daemons when it reads their claims: from then on the
figures of the hosts include them.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.columns.changes import Release, Update
from scheduler_service.engine.journal import PodPlaced
from scheduler_service.model import Request
from scheduler_service.pipeline import HostPipeline
from scheduler_service.planning import comparison
from scheduler_service.planning.simulation import Node, Simulation
from scheduler_service.store.records import recordings
from scheduler_service.store.records.playback import (
    Playback,
    RecordedEntry,
    SnapshotAt,
    Unread,
    read,
)
from scheduler_service.store.records.recording_format import (
    Block,
    RecordedDecision,
)
from scheduler_service.store.records.recordings import Stretch, block_times

# How many instances whose hosts differ are listed.
LISTED = 1000
# What parts hosts of the same weight.
_ORDER = 'the order of hosts'
# How much later than others read its claim a decision may be stored, by a
# daemon that is busy.
_AHEAD_S = 60.0
# When it was stored, by which other run, and what it is.
_Timed = tuple[float, int | None, Any]
# In the order of decisions, the request, the hosts that extenders and
# candidates left, and the fingerprint of the configuration.
_Selected = tuple[int, Request, Any, str]


class Differing(NamedTuple):
    """An instance for which a configuration takes another host.

    :ivar instance: None: of the first for which no host really was left
    :ivar really: the host that was taken; None: it was refused
    :ivar own: the host that the configuration takes; None: it refuses
    :ivar parted_by: the first filter that rejects the real host, or else the
        weigher that prefers its own the most
    """

    request_id: str | None
    instance: str | None
    really: str | None
    own: str | None
    parted_by: str


class Steps:
    """Compares what a configuration decides with what was decided.

    :param since: seconds since the epoch
    :param until: likewise
    :param pipeline_of: returns the pipeline for the fingerprint of the
        configuration that a request was decided with
    :ivar unread: blocks that cannot be read
    :ivar same: for how many instances the same host is taken, or refused alike
    :ivar drawn: for how many the real host is one of those that are drawn from
    :ivar differing: how many others there are
    :ivar listed: the first of these
    """

    def __init__(
        self,
        conn: Connection,
        since: float,
        until: float,
        pipeline_of: Callable[[str], HostPipeline],
    ) -> None:
        self._conn, self._since, self._until = conn, since, until
        self._pipeline_of = pipeline_of
        self.unread: list[Unread] = []
        self.same = self.drawn = self.differing = 0
        self.listed: list[Differing] = []

    def figures(self) -> dict[str, Any]:
        """Return the counts, and how many per cent agree."""
        agree = self.same + self.drawn
        every = agree + self.differing
        return {
            'instances': every,
            'same': self.same,
            'drawn': self.drawn,
            'differing': self.differing,
            'as_really': round(100 * agree / every, 2) if every else None,
        }

    def play(self) -> Iterator[float]:
        """Go through all of it; yield the time after each step."""
        every = recordings.stretches(self._conn)
        for _, run in itertools.groupby(every, operator.attrgetter('run')):
            playback = Playback(self._conn)
            for stretch in run:
                if stretch.began_at >= self._until:
                    break
                if stretch.ended_at >= self._since:
                    yield from self._stretch(playback, stretch)

    def _stretch(
        self, playback: Playback, stretch: Stretch
    ) -> Iterator[float]:
        entries = read(playback, stretch, self.unread)
        for entry, block, _, overlay, *_ in entries:
            if self._since <= block.stored_at < self._until and overlay:
                if isinstance(entry, RecordedDecision):
                    self._decide(SnapshotAt(overlay, entry, block))
                yield block.stored_at

    def _decide(self, then: SnapshotAt) -> None:
        """Compare a decision; the table is as before when it returns."""
        pipeline = self._pipeline_of(then.block.configuration)
        entry = then.entry
        for turn in range(entry.earlier, len(entry.rows) + bool(entry.error)):
            then.place(turn)
            self._compare(pipeline, then)
        then.leave()

    def _compare(self, pipeline: HostPipeline, then: SnapshotAt) -> None:
        """Compare the host of one instance, or that there was none for it."""
        entry, request, row = then.entry, then.request, then.taken
        judge = comparison.bounded(pipeline, request, entry.bounds)
        own, fault = comparison.Standing(None, None), ''
        try:
            judge.check_devices(request)
            own = comparison.standing(judge, then.table, request, row)
        except errors.SchedulerError as error:
            fault = error.name
        settings = pipeline.settings
        # Who lost a claim draws, too.
        among = max(settings.host_subset_size, 2**entry.attempt)
        draws = among > 1 or settings.shuffle_best_same_weighed_hosts
        if own.best == row:
            self.same += 1
        elif draws and own.ahead is not None and own.ahead < among:
            self.drawn += 1
        else:
            self.differing += 1
            if row is not None and not fault:
                fault = _parted_by(judge, then, row, own.best)
            self._list(then, own.best, fault or entry.error)

    def _list(self, then: SnapshotAt, own: int | None, parted_by: str) -> None:
        if len(self.listed) < LISTED:
            request, row = then.request, then.taken
            really, taken = (
                None if each is None else then.table.host_at(each)
                for each in (row, own)
            )
            uuid = request.placing if row is not None else None
            self.listed.append(
                Differing(request.request_id, uuid, really, taken, parted_by)
            )


def _parted_by(
    pipeline: HostPipeline, then: SnapshotAt, row: int, own: int | None
) -> str:
    """Return what keeps a configuration from taking a host."""
    table, request = then.table, then.request
    host, node = table.host_at(row), table.node_at(row)
    nodes = comparison.of_host(pipeline, table, request, host, own)
    report = next(each for each in nodes if each['node'] == node)
    for each in report['filters']:
        if not each['passes']:
            return str(each['filter'])
    ahead = {
        str(each['weigher']): each['best_weight'] - each['weight']
        for each in report['weights']['weighers']
    }
    first = max(ahead, key=ahead.__getitem__, default='')
    return first if ahead and ahead[first] > 0 else _ORDER


class Onward:
    """Goes through what daemons recorded in some time.

    :param since: seconds since the epoch
    :param until: likewise
    :param pipeline_of: returns the pipeline for the fingerprint of the
        configuration that a request was decided with
    :ivar unread: blocks that cannot be read
    """

    def __init__(
        self,
        conn: Connection,
        since: float,
        until: float,
        simulation: Simulation,
        pipeline_of: Callable[[str], HostPipeline],
    ) -> None:
        self._conn, self._since, self._until = conn, since, until
        self._simulation, self._pipeline_of = simulation, pipeline_of
        self.unread: list[Unread] = []
        self._run = 0
        # By instance, where the claim is to be read.
        self._unseen: dict[str, _Selected] = {}
        self._numbers = itertools.count()

    def play(self) -> Iterator[float]:
        """Go through all of it; yield the time after each step."""
        stretches = recordings.stretches(self._conn)
        by_run = itertools.groupby(stretches, operator.attrgetter('run'))
        decisions = [self._decisions(run, [*some]) for run, some in by_run]
        refusals = collections.deque[tuple[float, RecordedDecision, Block]]()
        for at, run, recorded in heapq.merge(
            self._followed(stretches),
            *(decisions if len(decisions) > 1 else ()),
            key=operator.itemgetter(0),
        ):
            while refusals and refusals[0][0] <= at:
                self._select(*refusals.popleft()[1:])
            if run is None:
                self._apply(recorded)
            elif run != self._run and recorded.entry.error:
                refusals.append((at + _AHEAD_S, *recorded[:2]))
            elif run != self._run:
                self._select(*recorded[:2])
            yield at
        self._read_rest(stretches)
        for _, entry, block in refusals:
            self._select(entry, block)

    def _decisions(
        self, run: int, stretches: Sequence[Stretch]
    ) -> Iterator[_Timed]:
        """Yield the decisions of a run before they were stored."""
        for stretch in stretches:
            numbers = [
                number
                for number, at in block_times(self._conn, stretch).items()
                if self._since <= at < self._until
            ]
            if numbers:
                some = stretch._replace(first=min(numbers), last=max(numbers))
                playback = Playback(self._conn, has_tables=False)
                for recorded in read(playback, some, self.unread):
                    if isinstance(recorded.entry, RecordedDecision):
                        at = recorded.block.stored_at - _AHEAD_S
                        yield at, run, recorded

    def _followed(self, stretches: Sequence[Stretch]) -> Iterator[_Timed]:
        """Yield the entries of the daemon that is followed.

        A table comes first, and where another recording is gone on with.
        """
        ends = {each.run: each.ended_at for each in stretches}
        at, left = self._since, [*stretches]
        # Where the next stretch of the same run begins.
        after: tuple[int, int] | None = None
        playback = Playback(self._conn)
        while left and at < self._until:
            stretch = max(
                (each for each in left if each.began_at <= at),
                key=lambda each: (
                    each[:2] == after, ends[each.run], each.began_at,
                ),
                default=min(left, key=operator.attrgetter('began_at')),
            )  # fmt: skip
            if stretch[:2] != after or not stretch.follows:
                playback = Playback(self._conn)
            lost, self._run = list[Unread](), stretch.run
            yield from self._stretch(playback, stretch, at, lost)
            self.unread += lost
            after = (0, 0) if lost else (stretch.run, stretch.last + 1)
            at = max(at, stretch.ended_at)
            left = [each for each in left if each.ended_at > at]

    def _stretch(
        self,
        playback: Playback,
        stretch: Stretch,
        at: float,
        lost: list[Unread],
    ) -> Iterator[_Timed]:
        """Yield the entries of a stretch from a time on.

        The table comes first, unless the entries before lead to it.

        :param lost: gets the block that cannot be read, if any
        """
        for recorded in read(playback, stretch, lost):
            time, overlay = recorded.block.stored_at, recorded.overlay
            if time > self._until:
                break
            if playback.has_tables:
                if overlay is None or overlay.assumes or time < at:
                    continue
                yield max(at, stretch.began_at), None, playback.take_table()
            yield time, None, recorded
        if playback.overlay is not None:
            yield at, None, playback.take_table()

    def _read_rest(self, stretches: Sequence[Stretch]) -> None:
        """Read what others claimed last, and the one followed did not read."""
        if not self._unseen:
            return
        ends = (each.ended_at for each in stretches if each.run == self._run)
        end = min(self._until, max(ends))
        newest = {e.run: e for e in stretches if e.began_at < self._until}
        for run, stretch in newest.items():
            if run != self._run and stretch.ended_at > end - _AHEAD_S:
                playback = Playback(self._conn)
                rest = self._stretch(
                    playback, stretch, self._until, self.unread
                )
                for *_, table in itertools.islice(rest, 1):
                    self._read(table)

    def _read(self, table: HostTable) -> None:
        """Have instances come that were claimed, as a table has them."""
        found = map(table.instances.get, self._unseen)
        self._update(Update(instances=[*filter(None, found)]))

    def _apply(self, recorded: RecordedEntry | HostTable) -> None:
        """Apply an entry of the daemon that is followed."""
        if isinstance(recorded, HostTable):
            if len(self._simulation.table):
                # Another one is gone on with.
                self._read(recorded)
            self._simulation.go_on(recorded)
            return
        for selected, block in recorded.ended:
            if recorded.is_claimed:
                self._claimed(selected, block)
            elif isinstance(selected, RecordedDecision):
                # What is claimed of it all the same is read later.
                self._select(selected, block)
        if isinstance(recorded.entry, Update):
            self._update(recorded.entry)
        elif isinstance(recorded.entry, Release):
            self._simulation.release(recorded.entry)

    def _claimed(
        self, entry: RecordedDecision | PodPlaced, block: Block
    ) -> None:
        """Have a decision come as it was claimed, or refused, or a pod."""
        table = self._simulation.table
        if isinstance(entry, PodPlaced):
            self._simulation.place_pod(entry.row, entry.amounts)
        else:
            real = {
                uuid: (table.host_at(row), table.node_at(row))
                for uuid, row in entry.placed
                if not entry.error
            }
            self._decide([(self._selected(entry, block), real)])

    def _select(self, entry: RecordedDecision, block: Block) -> None:
        """Take a decision whose claim is to be read, or a refusal."""
        if entry.error:
            self._claimed(entry, block)
        else:
            selected = self._selected(entry, block)
            self._unseen |= dict.fromkeys(entry.uuids, selected)

    def _selected(self, entry: RecordedDecision, block: Block) -> _Selected:
        request = block.request(entry)
        return next(self._numbers), request, entry.bounds, block.configuration

    def _update(self, update: Update) -> None:
        claimed: dict[int, tuple[_Selected, dict[str, Node]]] = {}
        for placed in update.instances:
            selected = self._unseen.pop(placed.uuid, None)
            if selected is not None:
                _, real = claimed.setdefault(selected[0], (selected, {}))
                real[placed.uuid] = placed.host, placed.node
        self._decide([claimed[number] for number in sorted(claimed)], update)

    def _decide(
        self,
        come: Sequence[tuple[_Selected, Mapping[str, Node]]],
        update: Update | None = None,
    ) -> None:
        """Have requests be decided, but for those of instances that move.

        :param come: with where their instances really got
        :param update: that has them; None: the table has them already
        """
        simulation, new = self._simulation, []
        for selected, real in come:
            request = selected[1]
            if not any(map(simulation.is_present, request.instance_uuids)):
                simulation.arrive(request, real)
                new.append(selected)
        if update is not None:
            simulation.update(update)
        for _, request, bounds, configuration in new:
            pipeline = self._pipeline_of(configuration)
            simulation.decide(pipeline, request, bounds)
