"""What the engine needs of the world: two ports to the store, and stages.

:class:`HostSource` has the hosts, and :class:`Claimer` takes what is promised
of them. The store implements both. A claim in it keeps the daemons that share
it from colliding. What a request takes besides, such as allocations in the
placement service or the word of an extender, takes time that the engine's
thread does not have: stages that wait take jobs away to threads of their own,
and give each of them back to the request queue with the state that they
brought it to, or with the reason why they could not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import (
    ClaimsJob,
    HostJob,
    Job,
    State,
    ZoneJob,
)
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.model import Placement, PoolAnswer, Request
from scheduler_service.pipeline import HostPipeline


class ClaimLost(Exception):
    """What was to be claimed is not free, or not allowed, any more.

    Its text says why, as a sentence; empty: another request was faster.
    """


class HostSource(Protocol):
    """The hosts and pools, as the store has them.

    :class:`~scheduler_service.store.ports.host_source.StoreHostSource` is it.
    The engine's thread alone calls it, and writes what it assumes into the
    table of the snapshot. Any call may raise StoreUnavailable.
    """

    snapshot: Snapshot | None
    refreshed_at: float
    loading: bool

    @property
    def current_at(self) -> float: ...
    def load(self) -> Snapshot: ...
    def current(self) -> Snapshot: ...
    def refresh(self) -> Snapshot: ...
    def changed_by_others(self) -> bool: ...
    def advance(self, pending: PendingClaims) -> None: ...
    def is_waiting(self) -> bool: ...
    def forget(self, max_age: float) -> None: ...
    def drop(self) -> None: ...


class PendingClaims(Protocol):
    """Claims of a batch, all or none of which are made.

    :ivar instances: for how many
    :ivar lineage: the token of the change that makes them
    :ivar sent_at: monotonic time before they were sent
    """

    instances: int
    lineage: str
    sent_at: float

    def wait(self) -> int:
        """Wait until they are made; return the revision of the change.

        :raises ClaimLost: none is
        :raises StoreUnavailable: it is not known whether they are
        """


class Recalled(NamedTuple):
    """The outcome that a message has from an earlier delivery.

    :ivar held: whether all that the result places is claimed still
    :ivar given_up: placements that are claimed, but are not the outcome
    :ivar borrowed: instances of the result that other requests claimed
    """

    result: Any = None
    error: errors.SchedulerError | None = None
    held: bool = False
    given_up: Sequence[Placement] = ()
    borrowed: Sequence[str] = ()

    def settle(self, job: Job) -> None:
        """Set it on a job's future; only what is borrowed is recorded."""
        if self.borrowed:
            job.finish_unrecorded(self.result, self.borrowed)
            return
        job.state = State.DONE
        if self.error is not None:
            job.future.set_exception(self.error)
        else:
            job.future.set_result(self.result)

    def resume(self, job: HostJob) -> None:
        """Have a job go on from where its earlier delivery came to.

        Whether claims were completed and bound before is not known.
        """
        if self.held:
            job.attempt.placements = self.result.placements
            job.state = State.CLAIMED
        elif self.given_up:
            attempt = job.attempt
            attempt.placements, attempt.failure = self.given_up, self.error
            job.state = State.CLAIMED
        else:
            self.settle(job)


class Claimer(Protocol):
    """Takes and gives back what the store has, for the engine's thread.

    :class:`~scheduler_service.store.ports.claimer.StoreClaimer` is it. Any
    call may raise StoreUnavailable: then it is not known whether it had an
    effect, and what it had is found when it is made again.
    """

    def use(
        self, ratios: Mapping[str, float], policies: Collection[str]
    ) -> None: ...
    def prepare(self, jobs: Sequence[HostJob]) -> PendingClaims | None: ...
    def send(self, *pending: Any) -> None: ...
    def give_up(self, jobs: Sequence[HostJob]) -> None: ...
    def find(
        self, instances: Sequence[str], moves: bool
    ) -> dict[str, Placement]: ...
    def run_somewhere(self, instances: Sequence[str]) -> bool: ...
    def held_of(self, host_id: int, instance: str) -> Mapping[str, int]: ...
    def recall(self, job: HostJob | ZoneJob) -> Recalled | None: ...
    def send_changes(self, jobs: Sequence[ClaimsJob]) -> None: ...
    def make_changes(self, jobs: Sequence[ClaimsJob]) -> None: ...
    def pools_of(
        self, zone_ids: Sequence[str]
    ) -> Mapping[str, tuple[str, str | None]]: ...
    def store_zones(
        self, chosen: Sequence[tuple[ZoneJob, Any, PoolAnswer]]
    ) -> bool: ...


# Has a decision stored: the job, ``chosen`` or the name of the error, and the
# reasons, which JSON can represent.
RecordDecision = Callable[[HostJob | ZoneJob, str, Mapping[str, Any]], None]


class Parts(NamedTuple):
    """What the stages of the engine share."""

    source: HostSource
    claimer: Claimer
    record: RecordDecision
    health: Health
    queue: RequestQueue
    rng: random.Random


class StoreMonitor(Protocol):
    """Has the daemon stop work while the store is away."""

    def only_session_lost(self, error: errors.StoreUnavailable) -> bool: ...
    def lost(self, error: errors.StoreUnavailable) -> None: ...
    def answered(self, waiting: int) -> None: ...


class Completer(Protocol):
    """Completes claims that the store has: CLAIMED -> COMPLETED.

    A job whose claims cannot be completed comes back with the ``failure`` of
    its attempt. Where that is NoValidHost, a host that has no room after all
    is among its ``excluded_hosts``, and the job is scheduled again.
    """

    def plan(self, job: HostJob) -> None:
        """Set the ``intents`` of a job that is selected and not claimed yet.

        The store records them with the claim.
        """

    def needs_candidates(self, request: Request) -> bool:
        """Whether hosts are selected among candidates for allocations."""

    def find_candidates(
        self,
        job: HostJob,
        request: Request,
        table: HostTable,
        pipeline: HostPipeline,
    ) -> None:
        """Take a job away; it comes back QUEUED with ``candidates``.

        :param request: of the job, without what is placed already
        :param table: the newest; it is copied before this returns
        :param pipeline: by which hosts are selected
        """

    def check_refusal(
        self,
        job: HostJob,
        refusal: errors.NoValidHost,
        table: HostTable,
        pipeline: HostPipeline,
    ) -> bool:
        """Take away a job that is about to be refused; return whether.

        It comes back with ``checked_at``: QUEUED where the store has caught up
        with something; otherwise the refusal is its ``failure``.

        :param table: the newest; it is copied before this returns
        :param pipeline: by which no host was selected
        """

    def complete(self, jobs: Sequence[HostJob]) -> None:
        """Take away jobs whose claims were made together."""

    def stop(self) -> None: ...


# Makes a completer, of what it takes jobs from and gives them back to.
MakeCompleter = Callable[[RequestQueue], Completer]


class Extenders(Protocol):
    """Other services that have a say in requests.

    Of both methods that take jobs away the table is the newest; it is copied
    before they return.
    """

    max_requeries: int
    """How often a request whose hosts are taken is sent to them again."""

    @property
    def pending(self) -> int: ...
    @property
    def urls(self) -> list[str]: ...
    def applies_to(self, request: Request) -> bool: ...
    def binds(self, request: Request) -> bool: ...
    def ask(self, job: HostJob, table: HostTable) -> None:
        """Take a job away; it comes back QUEUED with ``extender_scores``."""

    def bind(self, job: HostJob, table: HostTable) -> None:
        """Take a job away to bind what it claimed: COMPLETED -> BOUND.

        Where that fails, the host is among its ``excluded_hosts``.
        """

    def retire(self) -> None:
        """Take no more jobs, and stop when the last one is back."""

    def stop(self) -> None: ...


# Makes what asks extenders: of the pipeline of hosts, the health, and what it
# takes jobs from and gives them back to.
MakeExtenders = Callable[[HostPipeline, Health, RequestQueue], Extenders]
