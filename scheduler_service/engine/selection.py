"""Select hosts for one job of a batch.

It belongs to the engine's thread.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from scheduler_service.columns import HostTable, Overlay
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.engine.claiming import ScheduledJob
from scheduler_service.engine.extenders import ExtenderDispatcher
from scheduler_service.engine.jobs import HostJob
from scheduler_service.engine.snapshot_cache import SnapshotCache
from scheduler_service.model import Placement, Request
from scheduler_service.pipeline import HostPipeline
from scheduler_service.store import claims


class Repeated(NamedTuple):
    """A job whose instances all hold a claim: the same placements again."""

    job: HostJob
    placements: list[Placement]


class Selector:
    """Selects hosts for jobs.

    :ivar extenders: asks extenders; None where there are none
    """

    def __init__(
        self,
        snapshots: SnapshotCache,
        pipeline: HostPipeline,
        rng: random.Random,
    ) -> None:
        self.extenders: ExtenderDispatcher | None = None
        self._snapshots = snapshots
        self._pipeline = pipeline
        self._rng = rng

    def select(
        self, overlay: Overlay, job: HostJob
    ) -> ScheduledJob | Repeated | None:
        """Select for a job; what is selected for a claim stays assumed.

        :return: None where extenders have to be asked first
        :raises NoValidHost: no host passes
        :raises SchedulerError: the request cannot be scheduled
        """
        table, request = overlay.table, job.request
        present = {
            uuid: placed
            for uuid in request.instance_uuids
            if (placed := table.instances.get(uuid)) is not None
        }
        before = self._claimed_before(present, job)
        if before:
            uuids = request.instance_uuids
            missing = [uuid for uuid in uuids if uuid not in before]
            if not missing:
                return Repeated(job, [before[uuid] for uuid in uuids])
            request = msgspec.structs.replace(request, instance_uuids=missing)
        if job.move or job.excluded_hosts:
            request = _elsewhere(present, request, job)
        if self._submit(job, table):
            return None
        # A job that lost its claim selects among more hosts: those who won
        # it select the best, too.
        spread = 2**job.attempts
        result = self._pipeline.select(
            overlay, request, self._rng, spread, job.extender_scores
        )
        if not job.claim:
            overlay.forget_last(len(result.assignments))
        known = present.keys() - before.keys()
        return ScheduledJob(job, result, table, before, known)

    def _claimed_before(
        self, present: Mapping[str, PlacedInstance], job: HostJob
    ) -> dict[str, Placement]:
        """Return the placements of instances that hold a claim already.

        :param present: the job's instances that the snapshot has
        """
        held = [
            uuid
            for uuid, placed in present.items()
            if (placed.bound_for if job.move else placed.claimed)
        ]
        if not held or not job.claim:
            return {}
        with self._snapshots.autocommit_connection() as conn:
            placements = claims.placements(conn, held, job.move)
        return msgspec.convert(placements, dict[str, Placement])

    def _submit(self, job: HostJob, table: HostTable) -> bool:
        """Submit a job to the extenders, if they have to be asked."""
        extenders = self.extenders
        if extenders is None or job.extender_scores is not None:
            return False
        if not extenders.applies_to(job.request):
            return False
        extenders.submit(job, table)
        return True

    def requery_extenders(self, job: HostJob, table: HostTable) -> bool:
        """Ask extenders once more where all hosts that they left are gone."""
        extenders = self.extenders
        scores = job.extender_scores
        if extenders is None or not scores or not all(scores):
            return False
        if job.extender_rounds > extenders.options.max_requeries:
            return False
        job.extender_scores = None
        return self._submit(job, table)


def _elsewhere(
    present: Mapping[str, PlacedInstance], request: Request, job: HostJob
) -> Request:
    """Return the request without the hosts that it cannot be on.

    Those that its instances move away from, and those that an extender
    could not bind.
    """
    hosts = set(job.excluded_hosts)
    if job.move:
        hosts.update(placed.host for placed in present.values())
    ignored = sorted({*(request.ignore_hosts or ()), *hosts})
    return msgspec.structs.replace(request, ignore_hosts=ignored)
