"""From what was selected for jobs to claims in the store.

It belongs to the engine's thread. A claim is one type before it is sent,
``ClaimBatch``, and one while it is under way, ``PendingClaim``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence, Set
from typing import Any

import msgspec

from scheduler_service.columns import HostTable
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import HostJob
from scheduler_service.engine.snapshot_cache import SnapshotCache
from scheduler_service.model import STANDARD_CLASSES, Placement, Request
from scheduler_service.pipeline import (
    Assignment,
    HostPipeline,
    ScheduleResult,
)
from scheduler_service.store import claims, rows
from scheduler_service.store.records.decisions import Decision

_encode = msgspec.json.Encoder().encode


class _StoredPlacement(Placement, kw_only=True):
    """A placement as it is stored with its claim, for audits.

    :ivar amounts: resource class -> what the claim took
    """

    amounts: dict[str, int]


class ScheduledJob(msgspec.Struct, eq=False):
    """A job, what was selected for it, and what it was promised before.

    :ivar table: the table that it was selected on
    :ivar before: placements of its instances that hold a claim already
    :ivar known: its instances that the table had before
    :ivar decision: to be recorded once the claim is complete
    :ivar complete: whether the claim is complete
    """

    job: HostJob
    result: ScheduleResult
    table: HostTable
    before: dict[str, Placement]
    known: Set[str]
    decision: Decision | None = None
    complete: bool = False

    @property
    def placements(self) -> list[Placement]:
        """All placements of the request, in the order of its instances."""
        assignments = self.result.assignments
        if not self.before:
            return [assignment.placement for assignment in assignments]
        by_uuid = {
            assignment.uuid: assignment.placement for assignment in assignments
        }
        by_uuid.update(self.before)
        return [by_uuid[uuid] for uuid in self.job.request.instance_uuids]


class ClaimSender:
    """Sends claims for what was selected.

    :param pipeline: what it claims is selected by this one
    """

    def __init__(
        self,
        snapshots: SnapshotCache,
        pipeline: HostPipeline,
        health: Health,
    ) -> None:
        self._snapshots = snapshots
        self._health = health
        self.use(pipeline)

    def use(self, pipeline: HostPipeline) -> None:
        """Claim what this pipeline selects, from now on."""
        settings = pipeline.settings
        self._policies = frozenset(
            one.policy for one in pipeline.filters if one.policy
        )
        self._fallback = {
            name: settings.default_ratio(name) for name in STANDARD_CLASSES
        }

    def prepare(
        self, scheduled: Sequence[ScheduledJob]
    ) -> claims.ClaimBatch | None:
        """Return the claims of the jobs that want one; None: none does."""
        wanted = [
            _claim(scheduled_job, assigned)
            for scheduled_job in scheduled
            if scheduled_job.job.claim
            for assigned in scheduled_job.result.assignments
        ]
        if not wanted:
            return None
        return claims.prepare(
            self._snapshots.store, wanted, self._fallback, self._policies
        )

    def send(self, batch: claims.ClaimBatch, jobs: int) -> claims.PendingClaim:
        """Send a batch, to be claimed as a whole or not at all.

        :param jobs: how many jobs it is for
        :raises StoreUnavailable: it is not known whether anything is claimed
        """
        start = time.perf_counter()

        def on_done(fault: Exception | None) -> None:
            self._health.time('claim', time.perf_counter() - start)
            if isinstance(fault, claims.ClaimLost):
                self._health.count('claims_lost', by=jobs)

        snapshots = self._snapshots
        store = snapshots.store
        with snapshots.raw_connection() as conn:
            if not batch.statements:
                with snapshots.writer() as writing:
                    return claims.send(store, conn, batch, on_done, writing)
            pending = claims.send(store, conn, batch, on_done)
            snapshots.pending = pending
        return pending

    def wait(self, pending: claims.PendingClaim) -> int:
        """Wait for a claim; return its revision.

        :raises ClaimLost: nothing is claimed
        :raises StoreUnavailable: it is not known whether anything is claimed
        """
        with self._snapshots.raw_connection():
            return pending.wait()


def _claim(one: ScheduledJob, assigned: Assignment) -> claims.Claim:
    request = one.job.request
    selected = assigned.placement.selected
    known = assigned.uuid in one.known
    return claims.Claim(
        assigned.uuid,
        assigned.host_id,
        selected.host,
        selected.node,
        assigned.amounts,
        assigned.ratios,
        request.project_id,
        request.request_id,
        document=_document(request),
        placement=_stored(assigned),
        known=known,
        group=request.instance_group,
        group_owner=_group_owner(one),
        move=known and one.job.move,
        key=one.job.key,
        redelivered=one.job.contested,
        releases_seen=one.job.releases_seen,
    )


def _stored(assigned: Assignment) -> str:
    """Return what is stored of a placement, as JSON."""
    placement = assigned.placement
    stored = _StoredPlacement(
        instance_uuid=placement.instance_uuid,
        selected=placement.selected,
        alternates=placement.alternates,
        amounts=dict(assigned.amounts),
    )
    return _encode(stored).decode()


def _group_owner(one: ScheduledJob) -> str | None:
    """Return the project of the job's group; None: there is no such group."""
    uuid = one.job.request.instance_group
    group = one.table.groups.get(uuid) if uuid else None
    return None if group is None else group.project_id or ''


def _document(request: Request) -> str:
    """Return what is stored of an instance beside its place, as JSON."""
    document: dict[str, Any] = {
        'availability_zone': request.availability_zone,
        'flavor': {'flavorid': request.flavor.flavorid},
    }
    image = request.image
    if image is not None:
        meta = {'properties': image.properties} if image.properties else None
        document.update(image_id=image.id, image_meta=meta)
    return rows.document(document)
