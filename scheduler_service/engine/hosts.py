"""Use case: hosts for instances. One batch, one claim transaction."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service.columns import HostTable, Overlay
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.engine.claiming import Claimer, ScheduledJob
from scheduler_service.engine.decision_recorder import DecisionRecorder
from scheduler_service.engine.extenders import ExtenderDispatcher
from scheduler_service.engine.health import Health
from scheduler_service.engine.queue import ExplainJob, HostJob
from scheduler_service.engine.rounds import More, Round
from scheduler_service.engine.snapshot_cache import SnapshotCache
from scheduler_service.model import HostsAnswer, Placement, Request
from scheduler_service.pipeline import HostPipeline, explain
from scheduler_service.store import claims, lifecycle
from scheduler_service.store.decisions import Decision

KIND = 'select_destinations'


class HostScheduler:
    """Decides batches of host jobs.

    :param retries: how often a job that lost its claim is chosen again
    :ivar extending: asks extenders; None where there are none
    """

    def __init__(
        self,
        keeper: SnapshotCache,
        pipeline: HostPipeline,
        recorder: DecisionRecorder,
        rng: random.Random,
        retries: int,
        health: Health,
    ) -> None:
        self.health = health
        self.extending: ExtenderDispatcher | None = None
        self.keeper = keeper
        self.pipeline = pipeline
        self.recorder = recorder
        self._rng = rng
        self._retries = retries
        policies = {one.policy for one in pipeline.filters if one.policy}
        self.claimer = Claimer(
            keeper, pipeline.settings, frozenset(policies), health
        )

    def decide(self, jobs: Sequence[HostJob], more: More = tuple) -> None:
        """Answer every job, each for itself.

        :param more: gives plain jobs that came meanwhile, to be answered too
        :raises StoreUnavailable: some have no answer yet, and may be decided
            again: what was claimed for them is found then
        """
        waiting = [job for job in jobs if not job.future.done()]
        fresh = False
        while waiting:
            snapshot = (
                self.keeper.refresh() if fresh else self.keeper.current()
            )
            waiting = Round(self, snapshot, fresh, more).run(waiting)
            fresh, more = True, tuple

    def close(self) -> None:
        """Decide nothing more."""
        if self.extending is not None:
            self.extending.stop()

    def explain(self, job: ExplainJob) -> None:
        """Say what every filter makes of the hosts; nothing is claimed."""
        snapshot = self.keeper.current()
        request = job.request.with_ids()
        try:
            job.answer(self._report(snapshot.hosts, request, job.host))
        except errors.SchedulerError as error:
            job.fail(error)

    def _report(
        self, table: HostTable, request: Request, host: str | None
    ) -> dict[str, Any]:
        verdicts = self.pipeline.verdicts(table, request)
        view = explain.View(table, request, self.pipeline.settings)
        report: dict[str, Any] = {
            'request_id': request.request_id,
            'filters': explain.keepers(verdicts, view),
        }
        if host is not None:
            report['nodes'] = explain.host_report(verdicts, view, host)
        overlay = Overlay(table, trial=True)
        try:
            choice = self.pipeline.choose(overlay, request, self._rng)
        except errors.NoValidHost as error:
            return {**report, 'error': error.to_dict()}
        overlay.discard()
        return {
            **report,
            **choice.explanation(),
            'placements': [one.placement for one in choice.picked],
        }

    def choose(
        self, snapshot: Snapshot, overlay: Overlay, job: HostJob
    ) -> ScheduledJob | None:
        """Choose for a job; None where the answer was given before."""
        request = job.request
        index = snapshot.hosts.instances
        there = {
            uuid: placed
            for uuid in request.instance_uuids
            if (placed := index.get(uuid)) is not None
        }
        before = self._before(there, job) if there and job.claim else {}
        if before:
            uuids = request.instance_uuids
            missing = [uuid for uuid in uuids if uuid not in before]
            if not missing:
                made = [before[uuid] for uuid in uuids]
                self._finish(snapshot.hosts, job, made)
                return None
            request = msgspec.structs.replace(request, instance_uuids=missing)
        if job.move or job.banned:
            request = _elsewhere(snapshot, request, job)
        if self._parked(snapshot, job):
            return None
        # Whoever lost a claim chooses more freely, for those who won it
        # choose the best too.
        spread = 2**job.attempts
        aside = overlay if job.claim else Overlay(overlay.table, trial=True)
        choice = self.pipeline.choose(
            aside, request, self._rng, spread, job.advice
        )
        if not job.claim:
            aside.discard()
        known = there.keys() - before.keys()
        return ScheduledJob(job, choice, snapshot.hosts, before, known)

    def _before(
        self, there: Mapping[str, PlacedInstance], job: HostJob
    ) -> dict[str, Placement]:
        """Return what was answered for instances that hold a claim.

        :param there: the job's instances that are known
        """
        held = [
            uuid
            for uuid, placed in there.items()
            if (placed.bound_for if job.move else placed.claimed)
        ]
        if not held:
            return {}
        with self.keeper.single() as conn:
            found = claims.placements(conn, held, job.move)
        return msgspec.convert(found, dict[str, Placement])

    def lose(self, job: HostJob) -> None:
        """Count the loss; give up on a job that lost too often."""
        job.attempts += 1
        if job.attempts > self._retries:
            error = errors.MaxRetriesExceeded(
                'Every attempt lost its claim to another request '
                f'({self._retries} retries)',
                request_id=job.request.request_id,
                attempts=job.attempts,
            )
            self.refuse(job, error)

    def _parked(self, snapshot: Snapshot, job: HostJob) -> bool:
        """Hand a job to those who ask extenders, if they have to be asked."""
        ask = self.extending
        if ask is None or job.advice is not None:
            return False
        if not ask.applies_to(job.request):
            return False
        ask.submit(job, snapshot.hosts)
        return True

    def requery_extenders(self, snapshot: Snapshot, job: HostJob) -> bool:
        """Ask once more where all that was advised has gone meanwhile."""
        ask = self.extending
        if ask is None or not job.advice or not all(job.advice):
            return False
        if job.rounds > ask.options.max_requeries:
            return False
        job.advice = None
        return self._parked(snapshot, job)

    def _finish(
        self,
        table: HostTable,
        job: HostJob,
        placements: list[Placement],
        chosen: ScheduledJob | None = None,
    ) -> None:
        """Answer, once an extender has bound what it is to bind."""
        ask = self.extending
        if ask is None or not job.claim or not ask.binds(job.request):
            self._answer(job, placements, chosen)
            return

        def undone(error: errors.SchedulerError) -> None:
            uuids = [one.instance_uuid for one in placements]
            self.keeper.store.write(
                lambda writer: lifecycle.release(writer, uuids)
            )
            if len(job.banned) >= self.pipeline.settings.max_attempts:
                self.refuse(job, error)
                return
            job.advice = None
            ask.requeue(job)

        ask.bind(
            job,
            table,
            placements,
            lambda: self._answer(job, placements, chosen),
            undone,
        )

    def finish(self, one: ScheduledJob) -> None:
        """Answer a job that has what was chosen for it."""
        self._finish(one.table, one.job, one.placements, one)

    def record_chosen(self, one: ScheduledJob) -> None:
        if one.job.claim:
            self._record(one.job.request, 'chosen', one.told())

    def _answer(
        self,
        job: HostJob,
        placements: list[Placement],
        chosen: ScheduledJob | None = None,
    ) -> None:
        self.health.count('requests', 'chosen')
        why = None
        if chosen and job.explain:
            why = chosen.choice.explanation()
        answer = HostsAnswer(
            request_id=str(job.request.request_id),
            placements=placements,
            explanation=why,
        )
        job.answer(answer)

    def refuse(self, job: HostJob, error: errors.SchedulerError) -> None:
        """Answer with an error, count it, and keep why."""
        job.fail(error)
        self.health.count('requests', error.name)
        for cause in error.facts.get('filters') or ():
            self.health.count('filter_rejections', str(cause['filter']))
        if job.claim:
            self._record(job.request, error.name, {'error': error.to_dict()})

    def _record(self, request: Request, outcome: str, why: Any) -> None:
        self.recorder.put(Decision.of(request.request_id, KIND, outcome, why))


def _elsewhere(snapshot: Snapshot, request: Request, job: HostJob) -> Request:
    """Return the request without the hosts that it cannot be on.

    Those that its instances move away from, and those that were not bound.
    """
    hosts = set(job.banned)
    if job.move:
        index = snapshot.hosts.instances
        there = (index.get(uuid) for uuid in request.instance_uuids)
        hosts.update(one.host for one in there if one is not None)
    ignored = sorted({*(request.ignore_hosts or ()), *hosts})
    return msgspec.structs.replace(request, ignore_hosts=ignored)
