"""Callers that share a few instances on few hosts, and what they were told.

Several callers select, move, confirm and release the same instances at the
same time, and hosts report them, while the tables are read again and again.
Afterwards the answers are explained: see :mod:`tests.support.claim_model`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.rpc.client import SchedulerClient
from scheduler_service.store import schema
from tests.support import claim_samples
from tests.support.claim_model import NOWHERE, Model, Operation, Place
from tests.support.claim_room import Member, Refusal, Room
from tests.support.clouds import Cloud
from tests.support.documents import CONTEXT, OWNER
from tests.support.linearizability import UNANSWERED, GaveUp, find_order

_UNIT_MB = 256
# Less than the instances below take together.
CAPACITY_MB = {
    f'h{n}': units * _UNIT_MB for n, units in enumerate((2, 3, 4, 5))
}
_APART, _TOGETHER = (
    str(uuid.uuid5(uuid.NAMESPACE_DNS, name)) for name in ('apart', 'together')
)
_MEMBERS = (
    [Member(_UNIT_MB)] * 5
    + [Member(2 * _UNIT_MB)] * 3
    + [Member(_UNIT_MB, _APART, 'anti-affinity')] * 3
    + [Member(_UNIT_MB, _TOGETHER, 'affinity')] * 3
)
# An instance is replaced after so many, so that the search stays small.
_MOST_OPERATIONS = 40
_MOST_UNANSWERED = 4
_SAMPLE_EVERY_S = 0.03
_SHOWN = 5
_REPORTERS = 3
_CLIENTS = 4
_CALL_TIMEOUT_S = 15.0
# Answers that say nothing of what happened.
_UNKNOWN = (errors.StoreUnavailable, errors.ServiceBusy, errors.TooLate)


def inventory() -> dict[str, Any]:
    """Return hosts that are nearly full at once, and two groups."""
    return {
        'hosts': [
            {'host': host, 'vcpus': 64, 'memory_mb': size, 'local_gb': 100,
             'cpu_allocation_ratio': 1.0, 'ram_allocation_ratio': 1.0,
             'disk_allocation_ratio': 1.0}
            for host, size in CAPACITY_MB.items()
        ],
        'server_groups': [
            {'uuid': _APART, 'policy': 'anti-affinity'},
            {'uuid': _TOGETHER, 'policy': 'affinity'},
        ],
    }  # fmt: skip


@dataclasses.dataclass(eq=False)
class Instance:
    """An instance that callers share.

    :ivar operations: that concern it, as they end
    :ivar host: where it was placed last, as far as is known
    :ivar retired: whether no caller chooses it any more
    """

    uuid: str
    member: Member
    operations: list[Operation] = dataclasses.field(default_factory=list)
    unanswered: int = 0
    host: str = ''
    retired: bool = False


class Board:
    """The instances that callers choose from, and all that was answered.

    :ivar every: all instances so far, by uuid
    :ivar refusals: requests that got NoValidHost
    :ivar cancelled: requests that got RequestCancelled
    :ivar untrue: answers that nothing explains
    :ivar counts: how often each thing happened
    """

    def __init__(self, seed: int) -> None:
        self.every: dict[str, Instance] = {}
        self.refusals: list[Refusal] = []
        self.cancelled: list[Refusal] = []
        self.untrue: list[str] = []
        self.counts: Counter[str] = Counter()
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._slots = [self._new(member) for member in _MEMBERS]

    def _new(self, member: Member) -> Instance:
        name = uuid.UUID(int=self._rng.getrandbits(128), version=4)
        made = Instance(str(name), member)
        self.every[made.uuid] = made
        return made

    def choose(self, rng: random.Random, count: int = 1) -> list[Instance]:
        """Return any instances."""
        with self._lock:
            return rng.sample(self._slots, count)

    def choose_alike(self, rng: random.Random, count: int) -> list[Instance]:
        """Return instances that one request can ask places for."""
        with self._lock:
            first = rng.choice(self._slots)
            alike = [
                slot for slot in self._slots if slot.member == first.member
            ]
        others = [one for one in alike if one is not first]
        return [first, *rng.sample(others, count - 1)]

    def on(self, host: str) -> list[Instance]:
        """Return instances without a group that were last placed on a host."""
        with self._lock:
            return [
                slot
                for slot in self._slots
                if slot.host == host and not slot.member.group
            ]

    def listed(self) -> list[Instance]:
        """Return all instances so far."""
        with self._lock:
            return list(self.every.values())

    def count(self, what: str) -> None:
        """Count something that happened."""
        with self._lock:
            self.counts[what] += 1

    def record(self, one: Instance, operation: Operation) -> None:
        """Note an operation; retire an instance that had enough of them."""
        with self._lock:
            one.unanswered += operation.end == UNANSWERED
            if operation.end == UNANSWERED and operation.is_claim:
                number = len(one.operations)
                operation = operation._replace(number=number)
                one.operations.append(operation._replace(kind='undo'))
            one.operations.append(operation)
            if operation.is_claim and operation.answer:
                one.host = operation.answer
            enough = (
                len(one.operations) >= _MOST_OPERATIONS
                or one.unanswered >= _MOST_UNANSWERED
            )
            if enough and not one.retired:
                one.retired = True
                at = self._slots.index(one)
                self._slots[at] = self._new(one.member)


class Caller(threading.Thread):
    """One caller; it knows what it is told, and no more.

    :ivar fault: what ended it before its time
    """

    def __init__(
        self,
        cloud: Cloud,
        client: SchedulerClient,
        board: Board,
        seed: int,
        over: threading.Event,
    ) -> None:
        super().__init__(name=f'caller-{seed}')
        self.fault: BaseException | None = None
        self._cloud = cloud
        self._client = client
        self._board = board
        self._rng = random.Random(seed)
        self._over = over

    def run(self) -> None:
        """Do one thing after the other."""
        kinds = ['select'] * 9 + ['release'] * 7
        kinds += ['move'] * 3 + ['confirm'] * 3 + ['drop_moves'] * 2
        try:
            while not self._over.is_set():
                kind = self._rng.choice(kinds)
                self._do(kind, self._some(kind))
        except BaseException as fault:
            self.fault = fault

    def _some(self, kind: str) -> list[Instance]:
        if kind == 'move':
            return self._board.choose(self._rng)
        several = self._rng.random() < 0.3
        if kind == 'select':
            count = 2 if several else 1
            return self._board.choose_alike(self._rng, count)
        count = self._rng.randint(2, 4) if several else 1
        return self._board.choose(self._rng, count)

    def _do(self, kind: str, some: Sequence[Instance]) -> None:
        """Do something to instances; release those that were retired."""
        self._call(kind, some)
        for one in some:
            while one.retired and not self._call('release', [one]):
                continue

    def _call(self, kind: str, some: Sequence[Instance]) -> bool:
        """Call, and note the answer; return whether there was one."""
        self._board.count(kind)
        uuids = [one.uuid for one in some]
        # What is in a group belongs to a project from the start.
        grouped = all(one.member.group for one in some)
        context = OWNER if grouped else CONTEXT
        start = time.monotonic()
        try:
            if kind in ('select', 'move'):
                answer = self._client.select_destinations(
                    context, _request(some), move=kind == 'move'
                )
                told = {
                    placement['instance_uuid']: placement['selected']['host']
                    for placement in answer['placements']
                }
            else:
                changed = getattr(self._client, kind)(context, uuids)
                told = {one: one in changed for one in uuids}
        except errors.SchedulerError as error:
            if not isinstance(error, _UNKNOWN):
                self._refused(
                    Refusal(kind, start, time.monotonic(), uuids), error
                )
                return True
            told = self._unanswered(kind, uuids, error)
        except Exception as fault:
            told = self._unanswered(kind, uuids, fault)
        end = time.monotonic()
        for one in some:
            self._board.record(
                one,
                Operation(
                    kind,
                    start,
                    end if told else UNANSWERED,
                    told.get(one.uuid),
                    settled=end,
                ),
            )
        return bool(told)

    def _unanswered(
        self, kind: str, uuids: Sequence[str], fault: Exception
    ) -> dict[str, Any]:
        claiming = uuids if kind in ('select', 'move') else ()
        self._board.count(
            self._cloud.missing_reply(fault, claiming, kind == 'move')
        )
        time.sleep(0.2)
        return {}

    def _refused(self, one: Refusal, error: errors.SchedulerError) -> None:
        """Note a refusal, which changed nothing."""
        self._board.count(error.name)
        if error.name == 'NoValidHost':
            self._board.refusals.append(one)
        elif error.name == 'RequestCancelled':
            self._board.cancelled.append(one)
        elif error.name != 'MaxRetriesExceeded':
            self._board.untrue.append(f'{one}: {error.name}: {error}')


class Reporter(threading.Thread):
    """Hosts that report, one thing after the other.

    Reports have no number by which a daemon could know one that it had
    before, so these are for runs in which no message is delivered again. Of
    two reports of an instance that are under way at the same time daemons
    write the later one alone, so each reporter has instances of its own.
    """

    def __init__(
        self,
        client: SchedulerClient,
        board: Board,
        number: int,
        over: threading.Event,
    ) -> None:
        super().__init__(name=f'reporter-{number}')
        self.fault: BaseException | None = None
        self._number = number
        self._client = client
        self._board = board
        self._rng = random.Random(number)
        self._over = over

    def run(self) -> None:
        """Report."""
        try:
            while not self._over.wait(0.02):
                host = self._rng.choice(list(CAPACITY_MB))
                # Without any instances, so that nothing is used by others.
                state = {'host': host, 'memory_mb_used': 0, 'instances': [],
                         'num_io_ops': self._rng.randrange(3)}  # fmt: skip
                self._client.cast(CONTEXT, 'update_host_state', hosts=[state])
                report = self._rng.choices(
                    (self._has, self._gone, self._sync), (12, 4, 1)
                )
                report[0](host)
        except BaseException as fault:
            self.fault = fault

    def _has(self, host: str) -> None:
        """A host has one, mostly where it was placed."""
        mine = [one for one in self._board.choose(self._rng, len(_MEMBERS))
                if self._reports(one) and not one.member.group]  # fmt: skip
        if self._rng.random() < 0.8:
            mine = [one for one in mine if one.host == host]
        if mine:
            one = mine[0]
            document = {'uuid': one.uuid, 'project_id': CONTEXT['project_id']}
            with self._noting('has', host, {one: True}):
                self._client.call(
                    CONTEXT, 'update_instance_info',
                    host_name=host, instance_info=document,
                )  # fmt: skip

    def _gone(self, host: str) -> None:
        (one,) = self._board.choose(self._rng)
        if not self._reports(one):
            return
        with self._noting('gone', host, {one: True}):
            self._client.call(
                CONTEXT, 'delete_instance_info',
                host_name=host, instance_uuid=one.uuid,
            )  # fmt: skip

    def _sync(self, host: str) -> None:
        here = self._board.on(host)
        with self._noting(
            'sync', host, {one: one in here for one in self._board.listed()}
        ):
            self._client.call(
                CONTEXT, 'sync_instance_info',
                host_name=host, instance_uuids=[one.uuid for one in here],
            )  # fmt: skip

    def _reports(self, one: Instance) -> bool:
        return int(one.uuid[:8], 16) % _REPORTERS == self._number

    @contextlib.contextmanager
    def _noting(
        self, kind: str, host: str, concerned: dict[Instance, bool]
    ) -> Iterator[None]:
        """Note a report of instances."""
        self._board.count(kind)
        start = time.monotonic()
        yield
        end = time.monotonic()
        for one in {*self._board.listed()} - {*concerned}:
            if kind == 'sync':
                concerned[one] = False
        for one, listed in concerned.items():
            self._board.record(
                one, Operation(kind, start, end, host=host, listed=listed)
            )


class Sampler(threading.Thread):
    """Reads the tables again and again.

    :ivar samples: how many snapshots it took
    :ivar wrong: what was wrong in each one that was
    """

    def __init__(
        self, cloud: Cloud, board: Board, over: threading.Event
    ) -> None:
        super().__init__(name='sampler')
        self.samples = 0
        self.wrong: list[list[str]] = []
        self.fault: BaseException | None = None
        self._store = cloud.store
        self._board = board
        self._over = over
        with self._store.reading() as conn:
            names = sa.select(schema.hosts.c.host, schema.hosts.c.id)
            self._hosts = {row.host: row.id for row in conn.execute(names)}

    def run(self) -> None:
        """Take samples; none while the database is away."""
        try:
            while not self._over.wait(_SAMPLE_EVERY_S):
                with contextlib.suppress(errors.StoreUnavailable):
                    self.take()
        except BaseException as fault:
            self.fault = fault

    def take(self) -> dict[str, Place]:
        """Take one sample; return where instances are."""
        with self._store.reading() as conn:
            found = claim_samples.take(conn, self._hosts, _Sizes(self._board))
        self.samples += 1
        if found.wrong:
            self.wrong.append(found.wrong)
        return found.places


class _Sizes(dict[str, Member]):
    """What instances take, also of those that come while it is used."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def __missing__(self, one: str) -> Member:
        return self._board.every[one].member


def run(
    cloud: Cloud,
    seconds: float,
    callers: int = 10,
    seed: int = 1,
    disturb: Callable[[], Any] | None = None,
    quiet_s: float = 2.0,
) -> dict[str, Any]:
    """Run callers on the hosts of :func:`inventory`; explain the answers.

    :param disturb: has faults happen for as long as callers are to run;
        None: nothing happens, and hosts report their instances
    :param quiet_s: until the last message has been processed
    """
    over = threading.Event()
    board = Board(seed)
    # Of a connection each: to close one takes seconds.
    clients = [cloud.client(_CALL_TIMEOUT_S) for _ in range(_CLIENTS)]
    sampler = Sampler(cloud, board, over)
    crowd: list[Any] = [
        Caller(cloud, clients[n % len(clients)], board, seed * 1000 + n, over)
        for n in range(callers)
    ]
    crowd.append(sampler)
    if disturb is None:
        crowd += [
            Reporter(clients[n], board, n, over) for n in range(_REPORTERS)
        ]
    for one in crowd:
        one.start()
    try:
        happened = disturb() if disturb else over.wait(seconds)
    finally:
        over.set()
        for one in crowd:
            one.join()
    for one in crowd:
        if one.fault is not None:
            raise one.fault
    time.sleep(quiet_s)
    start = time.monotonic()
    places = sampler.take()
    end = time.monotonic()
    for one in board.every.values():
        there = places.get(one.uuid, NOWHERE)
        one.operations.append(Operation('read', start, end, there))
    return {
        'faults': dict(happened or {}),
        **_judge(board),
        'samples': sampler.samples,
        'wrong_samples': len(sampler.wrong),
        'first_wrong': sampler.wrong[:_SHOWN],
    }


def _judge(board: Board) -> dict[str, Any]:
    """Return what of the answers nothing explains."""
    histories = {one.uuid: one.operations for one in board.every.values()}
    model = Model(tuple(CAPACITY_MB))
    without, gave_up = [], []
    for name, history in histories.items():
        try:
            if find_order(history, NOWHERE, model.steps) is None:
                without.append(name)
        except GaveUp:
            gave_up.append(name)
    members = {one.uuid: one.member for one in board.every.values()}
    room = Room(CAPACITY_MB, members, histories)
    refused = [
        f'{refusal} was refused, and fitted on {host}: '
        f'{members[refusal.instances[0]]}'
        for refusal in board.refusals
        if (host := room.fitting(refusal))
    ]
    cancelled = [
        f'{one} was cancelled, and nobody released anything'
        for one in board.cancelled
        if not _was_released(one, histories)
    ]
    untrue = board.untrue + refused + cancelled
    return {
        'operations': sum(map(len, histories.values())),
        'calls': dict(board.counts),
        'histories': len(histories),
        'without_order': len(without),
        'gave_up': len(gave_up),
        'untrue': len(untrue),
        'first_untrue': untrue[:_SHOWN],
        'first_without_order': [
            _told(histories[name]) for name in without[:_SHOWN]
        ],
    }


def _was_released(one: Refusal, histories: dict[str, list[Operation]]) -> bool:
    """Whether an instance was released after a request was sent."""
    return any(
        each.kind in ('release', 'drop_moves')
        and each.start <= one.end
        and each.end >= one.start
        for name in one.instances
        for each in histories[name]
    )


def _told(history: Sequence[Operation]) -> list[str]:
    """Return a history as lines to read."""
    first = min(one.start for one in history)
    return [
        f'{one.start - first:.3f} {one.end - first:.3f} {one.kind} '
        f'{one.host}{"+" if one.listed else ""} {one.answer}'
        for one in sorted(history, key=lambda one: one.start)
    ]


def _request(some: Sequence[Instance]) -> dict[str, Any]:
    member = some[0].member
    return {
        'instance_uuids': [one.uuid for one in some],
        'flavor': {'memory_mb': member.size, 'vcpus': claim_samples.VCPUS},
        'instance_group': member.group or None,
    }
