"""Has a simulation go through what daemons recorded.

At any time one daemon's recording is followed. Its own requests come when
their claims are made, those of other daemons when it reads their claims: from
then on the figures of the hosts include them.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy.engine import Connection

from scheduler_service.columns import HostTable
from scheduler_service.columns.changes import Release, Update
from scheduler_service.engine.journal import Ended, PodPlaced
from scheduler_service.model import Request
from scheduler_service.pipeline import HostPipeline
from scheduler_service.planning.simulation import Node, Simulation
from scheduler_service.store.records import gaps, history
from scheduler_service.store.records.history import (
    Asked,
    Block,
    Stretch,
    times,
)

# How much later than others read its claim a decision may be stored, by a
# daemon that is busy.
_AHEAD_S = 60.0
# When it was stored, by which other run, what it is, and the block it is in.
_Recorded = tuple[float, int | None, Any, Block]
# In the order of decisions, the request, the hosts that extenders and
# candidates left, and the fingerprint of the configuration.
_Selected = tuple[int, Request, Any, str]


class Player:
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
        self.unread: list[gaps.Unread] = []
        self._run = 0
        # Assumed, and not claimed yet.
        self._waiting = collections.deque[tuple[Asked | PodPlaced, Block]]()
        # By instance, where the claim is to be read.
        self._unseen: dict[str, _Selected] = {}
        self._numbers = itertools.count()

    def play(self) -> Iterator[float]:
        """Go through all of it; yield the time after each step."""
        stretches = history.stretches(self._conn)
        by_run = itertools.groupby(stretches, operator.attrgetter('run'))
        decisions = [self._asked(run, [*some]) for run, some in by_run]
        refusals = collections.deque[tuple[float, Asked, Block]]()
        for at, run, entry, block in heapq.merge(
            self._followed(stretches),
            *(decisions if len(decisions) > 1 else ()),
            key=operator.itemgetter(0),
        ):
            while refusals and refusals[0][0] <= at:
                self._select(*refusals.popleft()[1:])
            if run is None:
                self._apply(entry, block)
            elif run != self._run and entry.error:
                refusals.append((at + _AHEAD_S, entry, block))
            elif run != self._run:
                self._select(entry, block)
            yield at
        self._read_rest(stretches)
        for _, entry, block in refusals:
            self._select(entry, block)

    def _asked(
        self, run: int, stretches: Sequence[Stretch]
    ) -> Iterator[_Recorded]:
        """Yield the decisions of a run before they were stored."""
        for stretch in stretches:
            stored_at = times(self._conn, stretch)
            since, until = self._since, self._until
            numbers = [n for n, at in stored_at.items() if since <= at < until]
            first, last = min(numbers, default=1), max(numbers, default=0)
            some = stretch._replace(first=first, last=last)
            read = gaps.read(self._conn, some, self.unread)
            for number, entry, block in read:
                if isinstance(entry, Asked):
                    yield stored_at[number] - _AHEAD_S, run, entry, block

    def _followed(self, stretches: Sequence[Stretch]) -> Iterator[_Recorded]:
        """Yield the entries of the daemon that is followed.

        A table comes first, and where another recording is gone on with.
        """
        ends = {each.run: each.ended_at for each in stretches}
        at, left = self._since, [*stretches]
        # Where the next stretch of the same run begins.
        after: tuple[int, int] | None = None
        while left and at < self._until:
            stretch = max(
                (each for each in left if each.began_at <= at),
                key=lambda each: (
                    each[:2] == after, ends[each.run], each.began_at,
                ),
                default=min(left, key=operator.attrgetter('began_at')),
            )  # fmt: skip
            is_next = stretch[:2] == after
            lost, self._run = list[gaps.Unread](), stretch.run
            follows = is_next and stretch.follows
            yield from self._stretch(stretch, at, follows, lost)
            self.unread += lost
            after = (0, 0) if lost else (stretch.run, stretch.last + 1)
            at = max(at, stretch.ended_at)
            left = [each for each in left if each.ended_at > at]

    def _stretch(
        self,
        stretch: Stretch,
        at: float,
        follows: bool,
        lost: list[gaps.Unread],
    ) -> Iterator[_Recorded]:
        """Yield the entries of a stretch from a time on.

        :param follows: whether the entries before it lead to it; else the
            table comes first
        :param lost: gets the block that cannot be read, if any
        """
        stored_at = times(self._conn, stretch)
        replay, last = None if follows else history.Replay(), None
        for number, entry, block in gaps.read(self._conn, stretch, lost):
            time, last = stored_at[number], block
            if time > self._until:
                break
            if replay is not None:
                overlay = replay.overlay
                if overlay is None or overlay.assumes or time < at:
                    replay.apply(entry, block)
                    continue
                yield max(at, stretch.began_at), None, overlay.table, block
                replay = None
            if not isinstance(entry, history.Part):
                yield time, None, entry, block
        if replay is not None and replay.overlay is not None and last:
            yield at, None, replay.overlay.table, last

    def _read_rest(self, stretches: Sequence[Stretch]) -> None:
        """Read what others claimed last, and the one followed did not read."""
        if not self._unseen:
            return
        ends = (each.ended_at for each in stretches if each.run == self._run)
        end = min(self._until, max(ends))
        newest = {e.run: e for e in stretches if e.began_at < self._until}
        for run, stretch in newest.items():
            if run != self._run and stretch.ended_at > end - _AHEAD_S:
                rest = self._stretch(stretch, self._until, False, self.unread)
                last = next(rest, None)
                if last is not None:
                    self._read(last[2])

    def _read(self, table: HostTable) -> None:
        """Have instances come that were claimed, as a table has them."""
        found = map(table.instances.get, self._unseen)
        self._update(Update(instances=[*filter(None, found)]))

    def _apply(self, entry: Any, block: Block) -> None:
        """Apply an entry of the daemon that is followed."""
        if isinstance(entry, HostTable):
            if len(self._simulation.table):
                # Another one is gone on with.
                self._read(entry)
            self._waiting.clear()
            self._simulation.go_on(entry)
        elif isinstance(entry, Asked | PodPlaced):
            self._waiting.append((entry, block))
            self._claimed(0)
        elif isinstance(entry, Ended) and entry.claimed >= 0:
            self._claimed(entry.claimed)
        elif isinstance(entry, Ended):
            # What is claimed of it all the same is read later.
            for selected, its_block in self._waiting:
                if isinstance(selected, Asked):
                    self._select(selected, its_block)
            self._waiting.clear()
        elif isinstance(entry, Update):
            self._update(entry)
        elif isinstance(entry, Release):
            self._simulation.release(entry)

    def _claimed(self, count: int) -> None:
        """Have instances be claimed, the first ones that wait.

        A refusal comes once nothing waits that was assumed before it.
        """
        while self._waiting:
            entry, block = self._waiting[0]
            if isinstance(entry, Asked):
                size = 0 if entry.error else len(entry.rows)
            else:
                size = 1
            if size > count:
                break
            count -= size
            self._waiting.popleft()
            if isinstance(entry, PodPlaced):
                self._simulation.place_pod(entry.row, entry.amounts)
                continue
            selected, real = self._selected(entry, block), {}
            table, uuids = self._simulation.table, selected[1].instance_uuids
            for at, row in zip(entry.order, entry.rows, strict=True):
                if not entry.error:
                    node = table.host_at(row), table.node_at(row)
                    real[uuids[at]] = node
            self._decide([(selected, real)])

    def _select(self, entry: Asked, block: Block) -> None:
        """Take a decision whose claim is to be read, or a refusal."""
        selected = self._selected(entry, block)
        if entry.error:
            self._decide([(selected, {})])
        else:
            uuids = selected[1].instance_uuids
            self._unseen.update(dict.fromkeys(uuids, selected))

    def _selected(self, entry: Asked, block: Block) -> _Selected:
        request = history.request(entry, block)
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
