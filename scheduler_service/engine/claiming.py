"""From what was chosen to claims in the store."""

from __future__ import annotations

import functools
import time
from collections.abc import Set
from typing import Any, NamedTuple

import msgspec

from scheduler_service.columns import HostTable
from scheduler_service.engine.health import Health
from scheduler_service.engine.queue import HostJob
from scheduler_service.engine.snapshot_cache import SnapshotCache
from scheduler_service.model import STANDARD_CLASSES, Placement, Request
from scheduler_service.pipeline import Assignment, ScheduleResult
from scheduler_service.settings import Settings
from scheduler_service.store import claims, rows


class ScheduledJob(msgspec.Struct, eq=False):
    """A job, what was chosen for it, and what it had from before.

    :ivar known: its instances that the table had before
    """

    job: HostJob
    choice: ScheduleResult
    table: HostTable
    before: dict[str, Placement]
    known: Set[str]

    @property
    def placements(self) -> list[Placement]:
        """All of the request's placements, in the order of its instances."""
        picked = self.choice.picked
        if not self.before:
            return [one.placement for one in picked]
        made = {one.uuid: one.placement for one in picked}
        made.update(self.before)
        return [made[uuid] for uuid in self.job.request.instance_uuids]

    def told(self) -> dict[str, Any]:
        """Return what was chosen and why, for the encoder alone."""
        placements: list[Any]
        if self.before:
            placements = [*self.placements]
        else:
            told = (one.told() for one in self.choice.picked)
            placements = [msgspec.Raw(one) for one in told]
        return {'placements': placements, 'explanation': self.choice.told()}


class Ready(NamedTuple):
    """What is to be claimed for jobs; None where none of them wants it."""

    chosen: list[ScheduledJob]
    prepared: claims.ClaimBatch | None


class Claiming:
    """A claim that is made, or being made.

    :ivar chosen: what it is for, and what needs none beside it
    :ivar revision: once it was waited for; 0: there was nothing to claim
    :param outcome: how it ends; None where there is nothing to claim
    """

    def __init__(
        self,
        chosen: list[ScheduledJob],
        keeper: SnapshotCache,
        outcome: claims.PendingClaim | None,
    ) -> None:
        self.chosen = chosen
        self.revision = 0
        self._keeper = keeper
        self._outcome = outcome

    def wait(self) -> None:
        """Wait until all of it is claimed.

        :raises ClaimLost: nothing is claimed
        :raises StoreUnavailable: it is not known whether anything is
        """
        if self._outcome is not None:
            with self._keeper.direct():
                self.revision = self._outcome.wait()


class Claimer:
    """Claims for jobs what was chosen for them.

    :param policies: of server groups that are to hold strictly
    """

    def __init__(
        self,
        keeper: SnapshotCache,
        settings: Settings,
        policies: frozenset[str],
        health: Health,
    ) -> None:
        self.keeper = keeper
        self._health = health
        self._policies = policies
        self._fallback = {
            name: settings.default_ratio(name) for name in STANDARD_CLASSES
        }

    def prepare(self, chosen: list[ScheduledJob]) -> Ready:
        """Return what is to be claimed for those jobs that want it."""
        wanted = [
            self._as_claim(one, picked)
            for one in chosen
            if one.job.claim
            for picked in one.choice.picked
        ]
        if not wanted:
            return Ready(chosen, None)
        prepared = claims.prepare(
            self.keeper.store, wanted, self._fallback, self._policies
        )
        return Ready(chosen, prepared)

    def begin(self, ready: Ready) -> Claiming:
        """Claim for those jobs that want it, all or nothing.

        :raises StoreUnavailable: it is not known whether anything is claimed
        """
        chosen, prepared = ready
        if prepared is None:
            return Claiming(chosen, self.keeper, None)
        start = time.perf_counter()

        def ended(fault: Exception | None) -> None:
            self._health.time('claim', time.perf_counter() - start)
            if isinstance(fault, claims.ClaimLost):
                wanted = sum(one.job.claim for one in chosen)
                self._health.count('claims_lost', by=wanted)

        with self.keeper.direct() as conn:
            outcome = claims.send(self.keeper.store, conn, prepared, ended)
            self.keeper.under_way = outcome
        return Claiming(chosen, self.keeper, outcome)

    def _as_claim(self, one: ScheduledJob, picked: Assignment) -> claims.Claim:
        request = one.job.request
        selected = picked.placement.selected
        known = picked.uuid in one.known
        return claims.Claim(
            picked.uuid,
            picked.host_id,
            selected.host,
            selected.node,
            picked.amounts,
            picked.ratios,
            request.project_id,
            request.request_id,
            document=_document(request),
            placement=picked.told().decode(),
            known=known,
            group=request.instance_group,
            move=known and one.job.move,
        )


def _document(request: Request) -> str:
    """Return what is kept of an instance beside its place, as JSON."""
    image, flavorid = request.image, request.flavor.flavorid
    if image is None:
        return _plain_document(request.availability_zone, flavorid)
    meta = {'properties': image.properties} if image.properties else None
    return rows.document(
        {
            'image_id': image.id,
            'availability_zone': request.availability_zone,
            'image_meta': meta,
            'flavor': {'flavorid': flavorid},
        }
    )


@functools.lru_cache(maxsize=1024)
def _plain_document(zone: str | None, flavorid: str | None) -> str:
    return rows.document(
        {'availability_zone': zone, 'flavor': {'flavorid': flavorid}}
    )
