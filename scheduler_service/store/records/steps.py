"""Has a configuration decide again, step by step, what daemons decided.

Each run of a daemon is gone through by itself, with the table that it had. At
each decision the configuration decides instance by instance, each after the
real hosts of those before it; then what was really selected is applied.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.pipeline import HostPipeline
from scheduler_service.planning import comparison
from scheduler_service.store.records import gaps, recordings
from scheduler_service.store.records.playback import Playback, SnapshotAt
from scheduler_service.store.records.recording_format import RecordedDecision
from scheduler_service.store.records.recordings import Stretch

# How many instances whose hosts differ are listed.
LISTED = 1000
# What parts hosts of the same weight.
_ORDER = 'the order of hosts'


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
        self.unread: list[gaps.Unread] = []
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
        read = gaps.read(playback, stretch, self.unread)
        for entry, block, _, overlay, *_ in read:
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
