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
from scheduler_service.model import Placement, PoolAnswer, Request
from scheduler_service.pipeline import HostPipeline


class ClaimLost(Exception):
    """What was to be claimed is not free, or not allowed, any more."""


class HostSource(Protocol):
    """The hosts and pools, as the store has them.

    The engine's thread alone calls it, and writes what it assumes into the
    table of the snapshot. Any call may raise StoreUnavailable.
    """

    snapshot: Snapshot | None
    """The newest; None before the first load."""
    refreshed_at: float
    """Monotonic time at which it was known to be current."""
    loading: bool
    """Whether hosts are being read, which may take long."""

    @property
    def current_at(self) -> float:
        """Likewise; 0: never as it is now, but for changes of ours."""
        ...

    def load(self) -> Snapshot:
        """Load everything anew."""
        ...

    def current(self) -> Snapshot:
        """Return the snapshot, brought up to date if it is too old."""
        ...

    def refresh(self) -> Snapshot:
        """Bring it up to date now; nothing may be assumed in its table."""
        ...

    def changed_by_others(self) -> bool:
        """Bring it up to date; return whether that changed it."""
        ...

    def advance(self, pending: PendingClaims) -> None:
        """Note that the snapshot has what claims of ours took."""
        ...

    def is_waiting(self) -> bool:
        """Whether an answer of the database is waited for; for any thread."""
        ...

    def forget(self, max_age: float) -> None:
        """Forget what was worked out from the options before.

        :param max_age: seconds after which the snapshot is brought up to date
            before it is used
        """
        ...

    def drop(self) -> None:
        """Drop the connections, and read what is not certain again."""
        ...


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
        ...


class Recalled(NamedTuple):
    """The outcome that a message has from an earlier delivery.

    :ivar held: whether all that the result places is claimed still
    :ivar given_up: placements that are claimed, but are not the outcome
    """

    result: Any = None
    error: errors.SchedulerError | None = None
    held: bool = False
    given_up: Sequence[Placement] = ()

    def settle(self, job: Job) -> None:
        """Set it on a job's future; nothing is recorded anew."""
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
            job.placements, job.state = self.result.placements, State.CLAIMED
        elif self.given_up:
            job.placements, job.state = self.given_up, State.CLAIMED
            job.failure, job.is_repeated = self.error, False
        else:
            self.settle(job)


class Claimer(Protocol):
    """Takes and gives back what the store has, for the engine's thread.

    Any call may raise StoreUnavailable: then it is not known whether it had
    an effect, and what it had is found when it is made again.
    """

    def use(
        self, ratios: Mapping[str, float], policies: Collection[str]
    ) -> None:
        """Claim by another configuration from now on.

        :param ratios: resource class -> allocation ratio of hosts without one
        :param policies: server group policies that a claim must not break
        """
        ...

    def prepare(self, jobs: Sequence[HostJob]) -> PendingClaims | None:
        """Return the claims of jobs; None: no job needs a claim.

        The database is not asked, so that another claim may be under way.
        """
        ...

    def send(self, *pending: Any) -> None:
        """Send claims.

        Those of one call of :meth:`prepare` are made as a whole or not at all.
        """
        ...

    def give_up(self, jobs: Sequence[HostJob]) -> None:
        """Release claims of jobs that come to nothing.

        Those that another copy of a message was answered with stay.
        """
        ...

    def find(
        self, instances: Sequence[str], moves: bool
    ) -> dict[str, Placement]:
        """Return the placements that instances hold claims of.

        :param moves: where they move to, in place of where they are
        """
        ...

    def run_somewhere(self, instances: Sequence[str]) -> bool:
        """Whether a host has one of these instances, as hosts reported."""
        ...

    def recall(self, job: HostJob | ZoneJob) -> Recalled | None:
        """Return the outcome that a job's message has already.

        It is looked up where there may be one: the message was delivered
        again, or others may have it.

        :return: None: it has none yet
        :raises RequestCancelled: it has none, and one of its instances was
            released since the request was sent
        """
        ...

    def send_changes(self, jobs: Sequence[ClaimsJob]) -> None:
        """Send changes that travel by themselves; the others go on meanwhile.

        :meth:`make_changes` has to follow.
        """
        ...

    def make_changes(self, jobs: Sequence[ClaimsJob]) -> None:
        """Make changes of which no two name an instance, and answer them."""
        ...

    def pools_of(
        self, zone_ids: Sequence[str]
    ) -> Mapping[str, tuple[str, str | None]]:
        """Return (pool id, project id) of each zone that is stored."""
        ...

    def store_zones(
        self, chosen: Sequence[tuple[ZoneJob, Any, PoolAnswer]]
    ) -> bool:
        """Store zones with their pools, all or none.

        :param chosen: jobs, with their answers
        :return: false where others stored one of them, or have its message
        """
        ...


class DecisionLog(Protocol):
    """Keeps decisions with their reasons; any thread may call it."""

    def record(
        self,
        job: HostJob | ZoneJob,
        kind: str,
        outcome: str,
        reasons: Mapping[str, Any],
    ) -> None:
        """Have a decision kept.

        :param kind: the verb
        :param outcome: ``chosen``, or the name of the error
        :param reasons: what JSON can represent
        """
        ...


class StoreMonitor(Protocol):
    """Has the daemon stop work while the store is away."""

    def lost(self, error: errors.StoreUnavailable) -> None:
        """Note that the store does not answer."""
        ...

    def answered(self, waiting: int) -> None:
        """Note that the store answers.

        :param waiting: how many requests waited for it
        :raises StoreUnavailable: it was lost, and cannot be written to yet
        """
        ...


class JobLender(Protocol):
    """What a stage that waits takes jobs from, and gives them back to."""

    def lend(self, jobs: Sequence[Job]) -> None:
        """Note, on the engine's thread, that a stage takes jobs away."""
        ...

    def give_back(self, job: Job) -> None:
        """Have the engine go on with a job; any thread may call it."""
        ...


class Completer(Protocol):
    """Completes claims that the store has: CLAIMED -> COMPLETED.

    A job whose claims cannot be completed comes back with its ``failure``.
    Where that is NoValidHost, a host that has no room after all is among its
    ``excluded_hosts``, and the job is scheduled again.
    """

    def plan(self, job: HostJob) -> None:
        """Set the ``intents`` of a job that is selected and not claimed yet.

        The store records them with the claim.
        """
        ...

    def check(self, request: Request) -> None:
        """Check that claims for a request can be completed.

        :raises InvalidRequest: they cannot; it says what is not supported
        """
        ...

    def needs_candidates(self, request: Request) -> bool:
        """Whether hosts are selected among candidates for allocations."""
        ...

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
        ...

    def check_refusal(
        self,
        job: HostJob,
        refusal: errors.NoValidHost,
        table: HostTable,
        pipeline: HostPipeline,
    ) -> None:
        """Take away a job that is about to be refused.

        Where hosts have more room than the store says, it comes back QUEUED,
        with ``checked_at``, once the store has caught up; otherwise the
        refusal is its ``failure``.

        :param table: the newest; it is copied before this returns
        :param pipeline: by which no host was selected
        """
        ...

    def complete(self, jobs: Sequence[HostJob]) -> None:
        """Take away jobs whose claims were made together."""
        ...

    def stop(self) -> None:
        """Complete nothing more."""
        ...


# Makes a completer, of what it takes jobs from and gives them back to.
MakeCompleter = Callable[[JobLender], Completer]


class Extenders(Protocol):
    """Other services that have a say in requests."""

    max_requeries: int
    """How often a request whose hosts are taken is sent to them again."""

    @property
    def pending(self) -> int:
        """How many jobs are out that will come back."""
        ...

    @property
    def urls(self) -> list[str]:
        """Their URLs, without credentials."""
        ...

    def applies_to(self, request: Request) -> bool:
        """Whether any of them has a say in a request."""
        ...

    def binds(self, request: Request) -> bool:
        """Whether one of them binds what is claimed for a request."""
        ...

    def ask(self, job: HostJob, table: HostTable) -> None:
        """Take a job away; it comes back QUEUED with ``extender_scores``.

        :param table: the newest; it is copied before this returns
        """
        ...

    def bind(self, job: HostJob, table: HostTable) -> None:
        """Take a job away to bind what it claimed: COMPLETED -> BOUND.

        Where that fails, the host is among its ``excluded_hosts``.

        :param table: the newest; it is copied before this returns
        """
        ...

    def retire(self) -> None:
        """Take no more jobs, and stop when the last one is back."""
        ...

    def stop(self) -> None:
        """End the threads and close the connections."""
        ...


# Makes what asks extenders: of the pipeline of hosts, the health, and what it
# takes jobs from and gives them back to.
MakeExtenders = Callable[[HostPipeline, Health, JobLender], Extenders]
