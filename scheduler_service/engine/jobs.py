"""Jobs: what the engine decides, and how far each has come.

A job is made by :class:`~scheduler_service.scheduler.Scheduler` in the
caller's thread. From then on it belongs to the engine's thread, which has the
stage run that comes next. A stage that has to wait, for a placement service or
an extender, takes the job away to a thread of its own, and gives it back to
the queue, with the reason where it failed.
"""

from __future__ import annotations

import enum
import time
from collections.abc import (
    Callable,
    Container,
    Mapping,
    Sequence,
)
from typing import Any, ClassVar, Protocol

import msgspec

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.engine.attempt import Attempt
from scheduler_service.engine.journal import Decided
from scheduler_service.engine.messages import (
    NO_MESSAGE,
    BatchItem,
    DeliveredMessage,
    ReplyFuture,
    RequestReturned,
    Unrecorded,
)
from scheduler_service.model import (
    Pool,
    Request,
    ServerGroup,
    ZoneRequest,
)

# The lane of all explanations, whoever asks.
EXPLANATIONS = 'explanations'
# A job that waited for longer than this many seconds, since it came or was
# last looked up, may have been processed by another daemon meanwhile, or its
# instances may have been released.
LONG_WAIT_S = 5.0


# Raises Forbidden unless the caller may change what projects have: of each
# instance, the project.
OwnerCheck = Callable[[Mapping[str, str | None]], None]


class Caller(Protocol):
    """Who makes a request, and what the policy allows them.

    :class:`~scheduler_service.request_context.RequestContext` is it.

    :ivar credentials: user_id, project_id, roles and so on
    :ivar project_id: the caller's project
    """

    credentials: dict[str, Any]
    project_id: str | None

    def authorize(self, rule: str, target: Mapping[str, Any]) -> None: ...
    def authorize_project(
        self, rule: str, project_id: str | None, what: str
    ) -> None: ...
    def check_select(
        self,
        request: Request,
        present: Mapping[str, PlacedInstance],
        table: HostTable,
    ) -> None: ...
    def owner_check(self, rule: str) -> OwnerCheck | None: ...


class State(enum.IntEnum):
    """How far a job has come; see ``engine.cycle:CYCLE``."""

    QUEUED = enum.auto()
    """It waits, also where it lost what it had been given."""
    SELECTED = enum.auto()
    """Hosts or a pool are selected for it, and assumed to be taken."""
    CLAIMED = enum.auto()
    """The store has its claim; further stages may complete it."""
    DONE = enum.auto()
    """It has its result or an error, or is about to get it."""


# Nobody waits for the result any more, or nothing can be recorded.
_NOT_RECORDED = (errors.TooLate, errors.StoreUnavailable, RequestReturned)


class Job(msgspec.Struct, eq=False):
    """Something to decide, and the future of its result.

    :ivar deadline: monotonic time after which nobody waits for the result;
        None: there is none
    :ivar attempts: how often its claim was lost to another
    :ivar isolated: whether it has to be decided in a batch of its own
    :ivar queued_at: monotonic time at which it was made
    :ivar came_at: revision of the snapshot when it came
    :ivar looked_up_at: monotonic time at which it had no outcome; 0: it was
        not looked up
    :ivar message: that it came with
    :ivar entry: its index in the message
    :ivar state: see :class:`State`
    :ivar away: whether a stage that waits has it, until the engine's thread
        takes it from the queue again
    :ivar after: jobs that have to have their results before
    :ivar charged: instances for which the lane was charged as it was taken
    :cvar most_waiting: how many of a lane may wait; None: as many as fit
    """

    most_waiting: ClassVar[int | None] = None

    future: ReplyFuture | BatchItem = msgspec.field(
        default_factory=ReplyFuture
    )
    deadline: float | None = None
    attempts: int = 0
    isolated: bool = False
    queued_at: float = msgspec.field(default_factory=time.monotonic)
    came_at: int = 0
    looked_up_at: float = 0.0
    message: DeliveredMessage = NO_MESSAGE
    entry: int = 0
    state: State = State.QUEUED
    away: bool = False
    after: list[Job] = msgspec.field(default_factory=list)
    charged: int = 0

    @property
    def size(self) -> int:
        """How many instances it is for; they are claimed together."""
        return 1

    @property
    def cost(self) -> int:
        """What is left to do, counted in instances."""
        return self.size

    @property
    def names(self) -> Sequence[str]:
        """Ids of what it changes: what names one of them waits for it."""
        return ()

    @property
    def key(self) -> str | None:
        """The idempotency key; None where no message can come again."""
        return self.message.key(self.entry)

    @property
    def contested(self) -> bool:
        """Whether another daemon may process a copy of its message now."""
        if self.message.redelivered:
            return True
        since = max(self.queued_at, self.looked_up_at)
        return bool(self.message.id) and (
            time.monotonic() - since > LONG_WAIT_S or self.message.is_lost()
        )

    @property
    def has_effect(self) -> bool:
        """Whether it changes anything, so that it must not be done twice."""
        return False

    def begin_anew(self) -> None:
        """Have it decided again: what it was given came to nothing."""
        self.state = State.QUEUED

    @property
    def waits(self) -> bool:
        """Whether it is yet to be decided, and nothing failed."""
        return self.state is State.QUEUED

    def done(self) -> bool:
        """Whether it has a result, or is about to get one."""
        return self.state is State.DONE or self.future.done()

    def finish(self, result: Any) -> None:
        """Set the result, unless the job has one."""
        if not self.done():
            self.state = State.DONE
            self.future.set_result(result)

    def fail(self, error: errors.SchedulerError | RequestReturned) -> None:
        """Set an error, unless the job has a result."""
        if isinstance(error, errors.SchedulerError):
            errors.without_traceback(error)
        if not self.done():
            self.state = State.DONE
            if not isinstance(error, _NOT_RECORDED):
                self._mark_unrecorded()
            self.future.set_exception(error)

    def finish_unrecorded(
        self, result: Any, instances: Sequence[str] | None = None
    ) -> None:
        """Set a result that no transaction recorded.

        :param instances: whose claims have to be there still; None: of all
        """
        if not self.done():
            self._mark_unrecorded(instances)
            self.finish(result)

    def _mark_unrecorded(self, instances: Sequence[str] | None = None) -> None:
        key = self.key
        if key is not None and self.has_effect:
            of = self.names if instances is None else instances
            self.future.unrecorded = Unrecorded(key, of)


class HostJob(Job, eq=False, kw_only=True):
    """Hosts for the instances of a request.

    :cvar verb: the method that it is a call of
    :cvar kind: of its claims
    :ivar with_pcpu: the request as it came, where dedicated CPUs count as VCPU
        in its place; None: they do not
    :ivar refusal: why no host has them as PCPU, once VCPU is tried
    :ivar claim: whether to claim them; else it only says what would happen
    :ivar explain: whether the result carries the reasons
    :ivar move: whether the instances keep the places that they have
    :ivar moves_unsaid: whether they keep them is seen by whether a host has
        one of them; the request then names the hosts that they cannot stay on
    :ivar excluded_hosts: hosts that refused it in an earlier attempt, and why
    :ivar caller: whose right to the instances and the group is checked; None:
        there is nothing to check
    :ivar checked: what left no host, as it was looked up -> monotonic time at
        which the store had caught up with others since then
    :ivar releases_seen: instance -> revision up to which releases of it are
        known not to cancel the request
    :ivar attempt: what it was given so far
    :ivar decided: what is recorded of its last decision; None: nothing
    """

    verb: ClassVar[str] = 'select_destinations'
    kind: ClassVar[str] = 'instance'

    request: Request
    with_pcpu: Request | None = None
    refusal: errors.SchedulerError | None = None
    caller: Caller | None = None
    claim: bool = True
    explain: bool = False
    move: bool = False
    moves_unsaid: bool = False
    excluded_hosts: dict[str, str] = msgspec.field(default_factory=dict)
    checked: dict[str, float] = msgspec.field(default_factory=dict)
    releases_seen: dict[str, int] = msgspec.field(default_factory=dict)
    attempt: Attempt = msgspec.field(default_factory=Attempt)
    decided: Decided | None = None

    def see_releases(self, revisions: Mapping[str, int]) -> None:
        """Note that releases up to these revisions do not cancel it."""
        for uuid, revision in revisions.items():
            seen = self.releases_seen.get(uuid, 0)
            self.releases_seen[uuid] = max(seen, revision)

    def begin_anew(
        self, *, candidates: bool = True, scores: bool = True
    ) -> None:
        """Have it selected again: what it was given came to nothing.

        :param candidates: whether those that were found count still
        :param scores: whether what extenders said counts still
        """
        self.state = State.QUEUED
        self.attempt = self.attempt.next(candidates, scores)

    def take_form(self, offered: Container[str]) -> None:
        """Take the form of the request that some hosts may satisfy.

        Hosts that offer PCPU may have come since the last time.

        :param offered: resource classes that some host offers
        """
        if self.with_pcpu is None:
            self._take(self.request.offered_form(offered))
        elif self.refusal is None and 'PCPU' in offered:
            self.request, self.with_pcpu = self.with_pcpu, None
            self.begin_anew(candidates=False)

    def look_again(self) -> None:
        """Have it selected again in its first form: hosts may have changed."""
        if self.with_pcpu is not None:
            self.request, self.with_pcpu = self.with_pcpu, None
        self.refusal = None
        self.begin_anew(candidates=False)

    def _take(self, form: Request) -> None:
        if form is not self.request:
            self.request, self.with_pcpu = form, self.request

    def fall_back(self, error: errors.SchedulerError) -> bool:
        """Have dedicated CPUs count as VCPU, if no host has them as PCPU.

        :return: whether it is to be selected for again
        """
        form = None
        if isinstance(error, errors.NoValidHost):
            form = self.request.without_pcpu(only_dedicated=True)
        if form is None:
            return False
        self._take(form)
        self.state, self.attempt, self.refusal = State.QUEUED, Attempt(), error
        return True

    @property
    def is_first_claim(self) -> bool:
        """Whether no earlier claim of its instances may have records."""
        return not (
            self.move
            or self.attempt.held
            or self.contested
            or self.attempts
            or self.excluded_hosts
        )

    @property
    def is_excluded(self) -> bool:
        """Whether a host that it has refused it."""
        return any(
            placement.selected.host in self.excluded_hosts
            for placement in self.attempt.placements
        )

    @property
    def waits(self) -> bool:
        return self.state is State.QUEUED and self.attempt.failure is None

    @property
    def has_effect(self) -> bool:
        return self.claim

    @property
    def recorded(self) -> bool:
        """Whether the engine records what became of it."""
        return self.claim

    @property
    def size(self) -> int:
        return self.request.num_instances or 1

    @property
    def cost(self) -> int:
        return self.request.num_instances - len(self.attempt.placed) or 1

    @property
    def names(self) -> Sequence[str]:
        return self.request.instance_uuids

    @property
    def batchable(self) -> bool:
        """Whether it may share a batch that is claimed in portions."""
        return not (self.move or self.moves_unsaid or self.isolated)


class ShadowJob(HostJob, eq=False, kw_only=True):
    """Hosts that another scheduler selects: nothing is claimed of ours.

    It is recorded, so that both can be compared.
    """

    verb: ClassVar[str] = 'shadow'

    claim: bool = False

    @property
    def recorded(self) -> bool:
        return True


class PodJob(HostJob, eq=False, kw_only=True):
    """The host of a pod, which a cluster's scheduler has chosen.

    Nothing is filtered, and the host's allocation ratios do not count. Its
    request has the pod's uid and what the pod takes.

    :ivar host: the service host
    :ivar name: of the pod in its namespace, which is the project
    :ivar doubt: why it is not known whether the pod is bound; its claim stays
    """

    verb: ClassVar[str] = 'bind'
    kind: ClassVar[str] = 'pod'

    host: str
    node: str
    name: str
    doubt: errors.SchedulerError | None = None

    @property
    def recorded(self) -> bool:
        # Whoever asked for it does, with what was answered before.
        return False


class ExplainJob(Job, eq=False, kw_only=True):
    """What every filter says of the hosts, or of one host.

    :ivar host: a service host to report on; None: only counts
    """

    most_waiting = 32

    request: Request
    message: DeliveredMessage = DeliveredMessage(lane=EXPLANATIONS)
    host: str | None = None

    @property
    def names(self) -> Sequence[str]:
        # The same of all, so that they are worked on one by one.
        return (EXPLANATIONS,)


class ZoneJob(Job, eq=False, kw_only=True):
    """A pool for a zone.

    :cvar verb: the method that it is a call of
    :ivar keep: whether to store it; else it only says what would happen
    :ivar pools: candidates by id that came with it; None: those of the store
    """

    verb: ClassVar[str] = 'schedule_zone'

    request: ZoneRequest
    caller: Caller
    pools: Mapping[str, Pool] | None = None
    keep: bool = True
    explain: bool = False

    @property
    def has_effect(self) -> bool:
        return self.keep

    @property
    def names(self) -> Sequence[str]:
        return (str(self.request.id),)


class Change(enum.Enum):
    """What a job changes of claims that exist, and what its result is."""

    RELEASE = 'release'
    """Release claims: the instances that held something."""
    CONFIRM = 'confirm'
    """Confirm claims: the instances that were not confirmed before."""
    DROP_MOVES = 'drop moves'
    """Release the second claims of instances: those that had one."""
    SUPERSEDE = 'supersede'
    """Release what earlier messages claimed: the instances."""
    UNDO = 'undo'
    """Release what a message claimed: the instances."""
    STORE_GROUP = 'store group'
    """Add or complete a server group: whether that changed it."""


class ClaimsJob(Job, eq=False, kw_only=True):
    """A change of claims that exist.

    :ivar instances: whose claims it changes, or that are about to join
    :ivar check: whether the caller may change them; None: it may
    :ivar project_id: for which its caller acts; None: for all
    :ivar claimed_by: idempotency key of what SUPERSEDE keeps and UNDO releases
    :ivar group: that STORE_GROUP stores
    """

    change: Change
    instances: Sequence[str] = ()
    check: OwnerCheck | None = None
    project_id: str | None = None
    claimed_by: str | None = None
    group: ServerGroup | None = None

    has_effect = True

    @property
    def size(self) -> int:
        return len(self.instances) or 1

    @property
    def names(self) -> Sequence[str]:
        return self.instances


def job_of(
    entry: Request | ZoneRequest,
    caller: Caller,
    future: BatchItem,
    message: DeliveredMessage,
    number: int,
) -> Job:
    """Return the job of one of many entries.

    :param number: the index of the entry
    """
    key = message.key(number)
    of: dict[str, Any] = {
        'future': future,
        'caller': caller,
        'message': message,
        'entry': number,
    }
    if isinstance(entry, Request):
        return HostJob(request=entry.with_ids(key), **of)
    return ZoneJob(request=entry.with_ids(key), **of)
