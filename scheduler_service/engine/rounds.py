"""One round over a batch: choose, claim, answer; who lost goes round again.

A long batch goes in portions: while the database claims for one, the next is
chosen, on the same overlay. What comes meanwhile goes along.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from scheduler_service import errors
from scheduler_service.columns import Overlay
from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.engine.claiming import Claiming, ScheduledJob
from scheduler_service.engine.queue import HostJob
from scheduler_service.store import claims

if TYPE_CHECKING:
    from scheduler_service.engine.hosts import HostScheduler

_PORTION = 32
More = Callable[[], Sequence[HostJob]]


class Round:
    """Chooses and claims once for some jobs, on one snapshot.

    :param fresh: whether the snapshot was just brought up to date
    :param more: gives plain jobs that came meanwhile, if any
    :ivar again: the jobs to choose for again
    """

    def __init__(
        self,
        desk: HostScheduler,
        snapshot: Snapshot,
        fresh: bool,
        more: More = tuple,
    ) -> None:
        self.again: list[HostJob] = []
        self._desk = desk
        self._snapshot = snapshot
        self._fresh = fresh
        self._more = more
        self._overlay = Overlay(snapshot.hosts)
        self._refused: list[tuple[HostJob, errors.SchedulerError]] = []
        self._named: set[str] = set()
        self._lost = False
        self._settled: HostJob | None = None

    def run(self, jobs: Sequence[HostJob]) -> list[HostJob]:
        """Decide what can be decided; return the jobs to choose for again.

        :raises StoreUnavailable: some have no answer yet
        """
        try:
            self._go(jobs)
        finally:
            # Whatever was chosen and not claimed.
            self._overlay.discard()
        if self._settled is not None and not self._lost:
            # Of a shape that comes again, the next one finds it done. Where
            # somebody was faster this is not the newest table any more.
            self._catch_up(self._settled, ahead=len(jobs) >= _PORTION)
        if self._fresh and not self._lost:
            for job, why in self._refused:
                self._desk.refuse(job, why)
        else:
            # On an old snapshot, or beside claims that came to nothing, a
            # refusal may not be true.
            self.again += [job for job, _ in self._refused]
        return self.again

    def _go(self, jobs: Sequence[HostJob]) -> None:
        going: Claiming | None = None
        try:
            for portion in self._portions(jobs):
                if self._lost:
                    # Not on what somebody else was faster at.
                    self.again += portion
                    continue
                chosen = self._choose(portion)
                # All that can be done for it while another is claimed.
                ready = self._desk.claimer.prepare(chosen)
                before, going = going, None
                if before is not None and not self._won(before):
                    self.again += [one.job for one in chosen]
                    continue
                going = self._desk.claimer.begin(ready)
                if before is not None:
                    self._settle(before)
        except BaseException:
            # Whoever is claimed for gets the answer nevertheless.
            if going is not None and self._won(going):
                self._settle(going)
            raise
        if going is not None and self._won(going):
            self._settle(going)

    def _portions(
        self, jobs: Sequence[HostJob]
    ) -> Iterator[Sequence[HostJob]]:
        """Yield jobs in portions; what joins groups or moves stays together.

        Then those that came meanwhile, where somebody is claimed for still.
        """
        if len(jobs) < 2 * _PORTION or not all(job.plain for job in jobs):
            yield jobs
            return
        yield from _cut(jobs)
        while not self._lost and (jobs := self._more()):
            yield jobs

    def _choose(self, jobs: Sequence[HostJob]) -> list[ScheduledJob]:
        """Choose for jobs; refusals and repetitions are noted for the end."""
        start = time.perf_counter()
        if len(jobs) >= _PORTION:
            # What one of many would stop for is done for all of them.
            self._catch_up(jobs[0], ahead=True)
        chosen: list[ScheduledJob] = []
        for job in jobs:
            if not self._named.isdisjoint(job.request.instance_uuids):
                # The same instance twice in a batch: after the first.
                self.again.append(job)
                continue
            try:
                found = self._desk.choose(self._snapshot, self._overlay, job)
            except errors.NoValidHost as error:
                if not self._desk.requery_extenders(self._snapshot, job):
                    self._refused.append((job, error))
            except errors.SchedulerError as error:
                self._desk.refuse(job, error)
            else:
                if found is not None:
                    chosen.append(found)
                    self._named.update(job.request.instance_uuids)
        self._desk.health.time('choose', time.perf_counter() - start)
        return chosen

    def _won(self, claiming: Claiming) -> bool:
        """Wait for a portion's claim; whether all of it is claimed."""
        try:
            claiming.wait()
        except claims.ClaimLost:
            self._lost = True
            self._overlay.discard()
            self._claim_each(claiming.chosen)
            return False
        return True

    def _settle(self, claiming: Claiming) -> None:
        """Answer what is claimed, and let the snapshot have it."""
        chosen = claiming.chosen
        # Answers first: the next snapshot can be made while they travel.
        for one in chosen:
            self._desk.finish(one)
        for one in chosen:
            self._desk.record_chosen(one)
        if not claiming.revision:
            return
        keeper = self._desk.keeper
        if any(one.job.move for one in chosen):
            # The overlay has what moves in one place alone.
            self._overlay.discard()
            keeper.refresh()
            return
        count = sum(len(o.choice.picked) for o in chosen if o.job.claim)
        table = self._overlay.published(count)
        keeper.advance(table, claiming.revision)
        self._settled = chosen[-1].job

    def _catch_up(self, job: HostJob, ahead: bool) -> None:
        shortlists = self._desk.pipeline.shortlists
        shortlists.catch_up(self._overlay.table, job.request, ahead)

    def _claim_each(self, chosen: Sequence[ScheduledJob]) -> None:
        """Claim one by one, since not all could be claimed together."""
        several = sum(one.job.claim for one in chosen) > 1
        for one in chosen:
            if one.job.claim and not (several and self._claimed(one)):
                self._desk.lose(one.job)
                if not one.job.future.done():
                    self.again.append(one.job)
                continue
            self._desk.finish(one)
            self._desk.record_chosen(one)
        if several:
            self._desk.keeper.refresh()

    def _claimed(self, one: ScheduledJob) -> bool:
        try:
            claimer = self._desk.claimer
            claimer.begin(claimer.prepare([one])).wait()
        except claims.ClaimLost:
            return False
        return True


def _cut(jobs: Sequence[HostJob]) -> Iterator[Sequence[HostJob]]:
    start = 0
    while len(jobs) - start >= 2 * _PORTION:
        yield jobs[start : start + _PORTION]
        start += _PORTION
    yield jobs[start:]
