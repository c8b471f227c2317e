"""Claims of a batch, and what else the engine's thread does in the store.

It belongs to the engine's thread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from oslo_db import exception as db_exception

from scheduler_service.engine.jobs import HostJob, ZoneJob
from scheduler_service.engine.ports import Recalled
from scheduler_service.model import Placement, PoolAnswer, Request
from scheduler_service.pipeline import Assignment
from scheduler_service.store import claims, rows
from scheduler_service.store.claims import outcomes, released_claims
from scheduler_service.store.connection import Writer
from scheduler_service.store.ports.changes import ClaimChanger
from scheduler_service.store.ports.host_source import StoreHostSource
from scheduler_service.store.ports.recall import (
    Outcomes,
    outcome_of,
    places_of,
)
from scheduler_service.store.writing import zones

_encode = msgspec.json.Encoder().encode


class StoreClaimer:
    """Implements :class:`~scheduler_service.engine.ports.Claimer` on SQL."""

    def __init__(self, source: StoreHostSource, outcomes: Outcomes) -> None:
        self._source = source
        self._outcomes = outcomes
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
        needed: list[claims.Claim] = []
        for job in jobs:
            if job.claim and job.selection is not None:
                _add_claims(needed, job, job.selection.assignments)
        if not needed:
            return None
        return claims.ClaimBatch(
            self._source.store, needed, self._ratios, self._policies
        )

    def send(self, *batches: claims.ClaimBatch) -> None:
        """Send batches, each to be claimed as a whole or not at all.

        Those that take one round trip take it together.

        :raises StoreUnavailable: the claims may have been made or not
        """
        source, together = self._source, []
        for batch in batches:
            if batch.statements:
                together.append(batch)
            else:
                with source.writer() as conn:
                    batch.send(conn)
        if together:
            with source.raw_connection() as conn:
                for batch in together:
                    source.pending = batch.send(conn)

    def give_up(self, jobs: Sequence[HostJob]) -> None:
        """Release the claims of jobs that failed."""

        def release(writer: Writer) -> None:
            for job in jobs:
                places = places_of(job.placements)
                released_claims.give_up(writer, places, job.move, job.key)

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
        if not job.has_effect or not job.message.id:
            return None
        if isinstance(job, HostJob) and not (
            job.contested
            or job.extender_rounds
            or self._source.releases.any_of(job.request.instance_uuids)
        ):
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
        self, chosen: Sequence[tuple[ZoneJob, Any, PoolAnswer]]
    ) -> bool:
        """Store zones with their pools, and the outcomes of their jobs."""
        added = [
            zones.ZoneRow(
                id=str(job.zone.id),
                name=str(job.zone.name),
                pool_id=answer.pool_id,
                project_id=job.zone.project_id,
                request_id=job.zone.request_id,
            )
            for job, _, answer in chosen
        ]
        recorded = [
            outcome_of(job.key, answer, None)
            for job, _, answer in chosen
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


def _add_claims(
    needed: list[claims.Claim],
    job: HostJob,
    assignments: Sequence[Assignment],
) -> None:
    request, key, contested = job.request, job.key, job.contested
    document, owner = _document(request), None
    if request.instance_group and job.table is not None:
        group = job.table.groups.get(request.instance_group)
        owner = None if group is None else group.project_id or ''
    for made in assignments:
        selected = made.placement.selected
        is_present = made.uuid in job.present
        # The amounts are for audits.
        stored = {
            'instance_uuid': made.uuid,
            'selected': selected,
            'alternates': made.placement.alternates,
            'amounts': made.amounts,
        }
        needed.append(
            claims.Claim(
                made.uuid,
                made.host_id,
                selected.host,
                selected.node,
                made.amounts,
                made.ratios,
                request.project_id,
                request.request_id,
                document=document,
                placement=_encode(stored).decode(),
                is_present=is_present,
                group=request.instance_group,
                group_owner=owner,
                move=is_present and job.move,
                key=key,
                redelivered=contested,
                intent=job.intents.get(made.uuid),
                releases_seen=job.releases_seen,
            )
        )


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
