"""What the engine needs of the world: two ports to the store, and stages.

:class:`HostSource` has the hosts, and :class:`Claimer` takes what is promised
of them. The store implements both. A claim in it keeps the daemons that share
it from colliding. What a request takes besides, such as allocations in the
placement service or the word of an extender, takes time that the engine's
thread does not have: a :class:`Stage` that waits takes jobs away to threads of
its own, and gives each of them back to the request queue.
"""

from __future__ import annotations

import enum
import random
from collections.abc import (
    Callable,
    Collection,
    Mapping,
    MutableSet,
    Sequence,
)
from typing import Any, ClassVar, NamedTuple, Protocol

import msgspec

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.columns.table import Snapshot
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import (
    ClaimsJob,
    HostJob,
    Job,
    State,
    ZoneJob,
)
from scheduler_service.engine.journal import Journal
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.model import Placement, PoolAnswer


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

    @property
    def current_at(self) -> float: ...
    def current(self) -> Snapshot: ...
    def refresh(self) -> Snapshot: ...
    def changed_by_others(self) -> bool: ...
    def advance(self, pending: PendingClaims) -> None: ...
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
        self, instances: Sequence[str], moves: bool, kind: str = 'instance'
    ) -> dict[str, Placement]: ...
    def run_somewhere(self, instances: Sequence[str]) -> bool: ...
    def held_of(
        self, providers: Sequence[int], instance: str
    ) -> Mapping[str, int]: ...
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
    journal: Journal


class StageRecord(NamedTuple):
    """What a stage may have done for the claim of an instance on a host.

    :ivar host_uuid: empty where the host is stored no more, as *host*
    :ivar document: JSON that the stage undoes it by
    :ivar looks: how often a check of the record began
    """

    stage: str
    instance_uuid: str
    host_id: int
    host_uuid: str
    host: str
    document: str
    looks: int = 0

    @property
    def content(self) -> dict[str, Any]:
        """The document, decoded."""
        return dict(msgspec.json.decode(self.document))


class Undone(enum.Enum):
    """The result of undoing what a stage did."""

    DONE = 'done'
    ABSENT = 'absent'
    """There was nothing to undo."""
    GAVE_UP = 'gave up'
    """It may be there still."""


# An instance, the uuid of its host, and JSON that says what is undone.
Intent = tuple[str, str, str]


class StoreMonitor(Protocol):
    """Has the daemon stop work while the store is away."""

    def only_session_lost(self, error: errors.StoreUnavailable) -> bool: ...
    def lost(self, error: errors.StoreUnavailable) -> None: ...
    def answered(self, waiting: int) -> None: ...


class Stage:
    """A stage of the cycle: what it does for host jobs, and how to undo it.

    The engine's thread calls all of this. A stage that has to wait lends jobs
    to threads of its own (``stages:WaitingStage``). Each comes back as it
    is, or with what the stage found out about hosts, or with the ``failure``
    of its attempt. A host that refused it is among its ``excluded_hosts``.

    :cvar name: of its place in ``engine.cycle:CYCLE``, or of a plug-in
    :cvar after: the stage that a plug-in's follows; empty: it has a place
    :cvar kinds: of the claims of the jobs that it runs for
    :cvar is_configured: whether a reload of the configuration replaces it
    :cvar is_recorded: whether it records what it does, and undoes it by that
    :cvar allocates: whether it makes allocations: then groups of resources
        can be claimed, and an instance that moves needs room for all of it
        beside what it has on the same host
    """

    name: ClassVar[str]
    after: str = ''
    kinds: ClassVar[Collection[str]] = ('instance',)
    is_configured: ClassVar[bool] = False
    is_recorded: ClassVar[bool] = False
    allocates: bool = False

    def run(self, jobs: Sequence[HostJob], table: HostTable) -> None:
        """Run for jobs; those that it leaves as they are go on.

        :param table: the newest; whoever hands it to a thread copies it first
        """

    def prepare(self, job: HostJob) -> None:
        """Add to the records of a selected job, which go with its claim."""

    def forget(self, job: HostJob, table: HostTable | None) -> bool:
        """Have a job begin anew, to find out about hosts once more.

        :param table: in which no host is left for it; None: it may have been
            judged by older hosts
        :return: whether it does; not where that can change nothing, or was
            done as often as it may be
        """
        return False

    def check_refusal(
        self, job: HostJob, refusal: errors.NoValidHost, table: HostTable
    ) -> bool:
        """Take away a job that is about to be refused; return whether.

        It comes back with ``checked``: QUEUED where the store has caught up
        with something; otherwise it fails.
        """
        return False

    def undo_all(
        self, records: Sequence[StageRecord], unsure: MutableSet[str]
    ) -> Mapping[str, Undone | Exception]:
        """Undo what was done for claims; nothing where there is nothing.

        The thread of the undoer calls it, on any daemon, and more than once.

        :param records: of different instances
        :param unsure: gets the instances for which a call got no answer: it
            may be carried out later
        :return: what it came to, or why nothing is known, for each instance
        """
        return {}

    def facts(self) -> Mapping[str, Any]:
        """Return what operators see of it, which JSON can represent."""
        return {}

    def retire(self) -> None:
        """Take no more jobs, and stop when the last one is back."""

    def stop(self) -> None:
        """End its threads."""
