"""Claims of a batch, and what else the engine's thread does in the store.

It belongs to the engine's thread. A claim is one type before it is sent,
``ClaimBatch``, and one while it is under way, ``PendingClaim``.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from oslo_db import exception as db_exception

from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import HostJob, ZoneJob
from scheduler_service.engine.ports import ClaimLost, Recalled
from scheduler_service.model import Placement, PoolAnswer, Request
from scheduler_service.pipeline import Assignment
from scheduler_service.store import claims, rows
from scheduler_service.store.claims import outcomes, released_claims
from scheduler_service.store.connection import Writer
from scheduler_service.store.ports.changes import ClaimChanger
from scheduler_service.store.ports.host_source import StoreHostSource
from scheduler_service.store.ports.recall import Outcomes, outcome_of
from scheduler_service.store.writing import zones

_encode = msgspec.json.Encoder().encode


class _StoredPlacement(Placement, kw_only=True):
    """A placement as it is stored with its claim, for audits.

    :ivar amounts: resource class -> what the claim took
    """

    amounts: dict[str, int]


class StoreClaimer:
    """Implements :class:`~scheduler_service.engine.ports.Claimer` on SQL."""

    def __init__(
        self, source: StoreHostSource, outcomes: Outcomes, health: Health
    ) -> None:
        self._source = source
        self._outcomes = outcomes
        self._health = health
        self._ratios: Mapping[str, float] = {}
        self._policies: Collection[str] = ()
        changer = ClaimChanger(source, outcomes)
        self.send_changes, self.make_changes = changer.send, changer.run

    def use(
        self, ratios: Mapping[str, float], policies: Collection[str]
    ) -> None:
        """Claim by another configuration from now on."""
        self._ratios, self._policies = ratios, policies

    def prepare(self, jobs: Sequence[HostJob]) -> claims.ClaimBatch | None:
        """Return the claims of the jobs that need one; None: none does."""
        needed = [
            _claim(job, assignment)
            for job in jobs
            if job.claim and job.selection is not None
            for assignment in job.selection.assignments
        ]
        if not needed:
            return None
        return claims.prepare(
            self._source.store, needed, self._ratios, self._policies
        )

    def send(self, batch: claims.ClaimBatch, jobs: int) -> claims.PendingClaim:
        """Send a batch, to be claimed as a whole or not at all.

        :raises StoreUnavailable: it is not known whether anything is claimed
        """
        start = time.perf_counter()

        def on_done(fault: Exception | None) -> None:
            self._health.time('claim', time.perf_counter() - start)
            if isinstance(fault, ClaimLost):
                self._health.count('claims_lost', by=jobs)

        source = self._source
        with source.raw_connection() as conn:
            if not batch.statements:
                with source.writer() as writing:
                    return claims.send(
                        source.store, conn, batch, on_done, writing
                    )
            pending = claims.send(source.store, conn, batch, on_done)
            source.pending = pending
        return pending

    def give_up(self, jobs: Sequence[HostJob]) -> None:
        """Release claims of jobs that come to nothing."""

        def release(writer: Writer) -> None:
            for job in jobs:
                released_claims.give_up(
                    writer, _places(job), job.move, job.key
                )

        with self._source.writer() as conn:
            self._source.store.write(release, conn)

    def find(
        self, instances: Sequence[str], moves: bool
    ) -> dict[str, Placement]:
        """Return the placements that instances hold claims of."""
        with self._source.autocommit_connection() as conn:
            placements = claims.placements(conn, instances, moves)
        return msgspec.convert(placements, dict[str, Placement])

    def run_somewhere(self, instances: Sequence[str]) -> bool:
        """Whether a host has one of these instances, as hosts reported."""
        with self._source.autocommit_connection() as conn:
            return claims.run_somewhere(conn, instances)

    def recall(self, job: HostJob | ZoneJob) -> Recalled | None:
        """Return the outcome that a job's message has already."""
        if not self._outcomes.may_exist(job, self._source.releases):
            return None
        with self._source.autocommit_connection() as conn:
            return self._outcomes.recall(conn, job)

    def pools_of(
        self, zone_ids: Sequence[str]
    ) -> Mapping[str, tuple[str, str | None]]:
        """Return (pool id, project id) of each zone that is stored."""
        with self._source.autocommit_connection() as conn:
            return zones.pools_of(conn, zone_ids)

    def store_zones(
        self, answers: Sequence[tuple[ZoneJob, PoolAnswer]]
    ) -> bool:
        """Store zones with their pools, and the outcomes of their jobs."""
        added = [_row(job, answer) for job, answer in answers]
        recorded = [
            outcome_of(job.key, answer, None)
            for job, answer in answers
            if job.key is not None
        ]

        def work(writer: Writer) -> None:
            outcomes.add(writer.conn, recorded)
            zones.add(writer, added)

        try:
            with self._source.writer() as conn:
                self._source.store.write(work, conn)
        except db_exception.DBDuplicateEntry:
            return False
        return True


def _claim(job: HostJob, assignment: Assignment) -> claims.Claim:
    request = job.request
    selected = assignment.placement.selected
    is_present = assignment.uuid in job.present
    return claims.Claim(
        assignment.uuid,
        assignment.host_id,
        selected.host,
        selected.node,
        assignment.amounts,
        assignment.ratios,
        request.project_id,
        request.request_id,
        document=_document(request),
        placement=_stored(assignment),
        is_present=is_present,
        group=request.instance_group,
        group_owner=_group_owner(job),
        move=is_present and job.move,
        key=job.key,
        redelivered=job.contested,
        intent=job.intents.get(assignment.uuid),
        releases_seen=job.releases_seen,
    )


def _stored(assignment: Assignment) -> str:
    """Return what is stored of a placement, as JSON."""
    placement = assignment.placement
    stored = _StoredPlacement(
        instance_uuid=placement.instance_uuid,
        selected=placement.selected,
        alternates=placement.alternates,
        amounts=dict(assignment.amounts),
    )
    return _encode(stored).decode()


def _group_owner(job: HostJob) -> str | None:
    """Return the project of the job's group; None: there is no such group."""
    uuid, table = job.request.instance_group, job.table
    group = table.groups.get(uuid) if uuid and table is not None else None
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


def _places(job: HostJob) -> dict[str, tuple[str, str]]:
    """Return where the instances of a job have their claims."""
    return {
        placement.instance_uuid: (
            placement.selected.host,
            placement.selected.node,
        )
        for placement in job.placements
    }


def _row(job: ZoneJob, answer: PoolAnswer) -> zones.ZoneRow:
    zone = job.zone
    return zones.ZoneRow(
        id=str(zone.id),
        name=str(zone.name),
        pool_id=answer.pool_id,
        project_id=zone.project_id,
        request_id=zone.request_id,
    )
