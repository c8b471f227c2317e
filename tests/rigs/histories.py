"""Callers that share a few instances on few hosts, and what they were told.

Several callers select, move, confirm and release the same instances at the
same time, and hosts report them, while the tables are read again and again.
Between these each caller has instances of its own for a while, and does to
them what goes wrong most easily. Some take classes that hosts and an aggregate
offer only at times. Afterwards the answers are explained: see
:mod:`tests.rigs.claim_model`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import queue
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.model import documents
from scheduler_service.rpc.client import SchedulerClient
from scheduler_service.store import schema
from scheduler_service.store.writing import aggregates
from tests.rigs import claim_samples
from tests.rigs.claim_model import NOWHERE, Model, Operation, Place
from tests.rigs.claim_room import Member, Refusal, Room
from tests.rigs.linearizability import UNANSWERED, GaveUp, find_order
from tests.support.clouds import Cloud
from tests.support.documents import CONTEXT, OWNER

import oslo_messaging  # isort: skip

_UNIT_MB = 256
# Less than the instances below take together.
CAPACITY_MB = {
    f'h{n}': units * _UNIT_MB for n, units in enumerate((2, 3, 4, 5))
}
_APART, _PAIRED, _TOGETHER = (
    str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
    for name in ('apart', 'paired', 'together')
)
_GROUPED = (
    Member(_UNIT_MB, _APART, 'anti-affinity'),
    Member(_UNIT_MB, _PAIRED, 'anti-affinity', most=2),
    Member(_UNIT_MB, _TOGETHER, 'affinity'),
)
_LICENSED = Member(_UNIT_MB, licensed=True)
# So many licences a host or the aggregate offers, or none.
_LICENCES = 3
_CHANGE_EVERY_S = 0.1
_MEMBERS = (
    [Member(_UNIT_MB)] * 5 + [Member(2 * _UNIT_MB)] * 3 + [*_GROUPED] * 3
)
# What callers do, as often as it is listed: to instances that they share, and
# to instances of their own (the methods of Caller with these names).
KINDS = (
    *['select'] * 9, *['release'] * 7, *['move'] * 3, *['confirm'] * 3,
    *['drop_moves'] * 2,
    *['contest'] * 3, *['again'] * 2, *['stray'] * 2, 'repeat',
    *['licence'] * 3,
)  # fmt: skip
# Operations after which an instance is replaced: the search stays small.
_MOST_OPERATIONS = 40
_MOST_UNANSWERED = 4
_SAMPLE_EVERY_S = 0.03
_SHOWN = 5
_REPORTERS = 3
_CLIENTS = 4
_CALL_TIMEOUT_S = 15.0
# Of callers that soon ask again.
_HASTY_TIMEOUT_S = 2.0
_CLAIMING = ('select', 'move')
# Answers that say nothing of what happened.
_UNKNOWN = (errors.StoreUnavailable, errors.ServiceBusy, errors.TooLate)


def inventory() -> dict[str, Any]:
    """Return hosts that are nearly full at once, and groups."""
    return {
        'hosts': [
            {'host': host, 'vcpus': 64, 'memory_mb': size, 'local_gb': 100,
             'cpu_allocation_ratio': 1.0, 'ram_allocation_ratio': 1.0,
             'disk_allocation_ratio': 1.0,
             'resources': _offered(claim_samples.LOCAL, _LICENCES)}
            for host, size in CAPACITY_MB.items()
        ],
        'server_groups': [
            {'uuid': one.group, 'policy': one.policy,
             'rules': {} if one.most == 1 else
             {'max_server_per_host': one.most}}
            for one in _GROUPED
        ],
        'aggregates': [_aggregate(_LICENCES)],
    }  # fmt: skip


def _aggregate(licences: int) -> dict[str, Any]:
    return {'id': claim_samples.AGGREGATE, 'name': 'all',
            'hosts': [*CAPACITY_MB],
            'resources': _offered(claim_samples.SHARED, licences)}  # fmt: skip


def _offered(name: str, licences: int) -> dict[str, Any]:
    return {name: {'total': licences}} if licences else {}


@dataclasses.dataclass(eq=False)
class Instance:
    """An instance that callers share.

    :ivar operations: that concern it, as they end
    :ivar host: where it was placed last, as far as is known
    :ivar retired: whether callers do not choose it, or not any more
    :ivar done_at: when it was released for good
    """

    uuid: str
    member: Member
    operations: list[Operation] = dataclasses.field(default_factory=list)
    unanswered: int = 0
    host: str = ''
    retired: bool = False
    done_at: float = UNANSWERED


class Board:
    """The instances that callers choose from, and all that was answered.

    :ivar every: all instances so far, by uuid
    :ivar refusals: requests that got an error, and changed nothing
    :ivar counts: how often each thing happened
    """

    def __init__(self, seed: int) -> None:
        self.every: dict[str, Instance] = {}
        self.refusals: list[Refusal] = []
        self.counts: Counter[str] = Counter()
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._slots = [self._new(member) for member in _MEMBERS]

    def _new(self, member: Member) -> Instance:
        name = uuid.UUID(int=self._rng.getrandbits(128), version=4)
        made = Instance(str(name), member)
        self.every[made.uuid] = made
        return made

    def own(self, member: Member) -> Instance:
        """Return a new instance that nobody else chooses."""
        with self._lock:
            one = self._new(member)
        one.retired = True
        return one

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

    def listed(self, since: float) -> list[Instance]:
        """Return all instances that may have been anywhere since then."""
        with self._lock:
            return [one for one in self.every.values() if one.done_at > since]

    def count(self, what: str) -> None:
        """Count something that happened."""
        with self._lock:
            self.counts[what] += 1

    def refused(self, one: Refusal) -> None:
        """Note an error.

        A request that was cancelled because of one of its instances may have
        claimed places for others, which it has given up by then.
        """
        with self._lock:
            self.counts[one.error] += 1
            self.refusals.append(one)
            if one.error != 'RequestCancelled' or len(one.instances) == 1:
                return
            for operations in (
                self.every[name].operations for name in one.instances
            ):
                made = Operation(
                    one.kind, one.start, UNANSWERED, number=len(operations)
                )
                operations += made, made._replace(kind='undo', end=one.end)

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


class Answers:
    """What is cast in reply to casts, for those that wait for it.

    :ivar destination: that a cast names
    """

    def __init__(self, cloud: Cloud) -> None:
        topic = f'{cloud.topic}-answers'
        self.destination = {'topic': topic}
        self._lock = threading.Lock()
        self._told: dict[str, queue.Queue[dict[str, Any]]] = {}
        self._server = oslo_messaging.get_rpc_server(
            cloud.client().transport,
            oslo_messaging.Target(topic=topic, server='me'),
            [self],
        )
        self._server.start()

    def scheduler_answer(self, ctxt: Any, **told: Any) -> None:
        """Take a reply."""
        self._of(told['request_id']).put(told)

    def wait(self, request_id: str, seconds: float) -> dict[str, Any]:
        """Return the result of a cast.

        :raises SchedulerError: it was refused
        :raises MessagingTimeout: there is no reply
        """
        try:
            told = self._of(request_id).get(timeout=seconds)
        except queue.Empty:
            raise oslo_messaging.MessagingTimeout from None
        if told['error']:
            raise errors.from_dict(told['error'])
        result: dict[str, Any] = told['result']
        return result

    def stop(self) -> None:
        """Take no more replies."""
        self._server.stop()
        self._server.wait()

    def _of(self, request_id: str) -> queue.Queue[dict[str, Any]]:
        with self._lock:
            return self._told.setdefault(request_id, queue.Queue())


class Lines(NamedTuple):
    """What a caller reaches daemons by.

    :ivar client: that is patient
    :ivar hasty: a client that gives up soon
    """

    client: SchedulerClient
    hasty: SchedulerClient
    answers: Answers


class Caller(threading.Thread):
    """One caller; it knows what it is told, and no more.

    :ivar fault: what ended it before its time
    """

    def __init__(
        self,
        cloud: Cloud,
        lines: Lines,
        board: Board,
        seed: int,
        over: threading.Event,
        kinds: Sequence[str] = KINDS,
    ) -> None:
        super().__init__(name=f'caller-{seed}')
        self.fault: BaseException | None = None
        self._cloud = cloud
        self._lines = lines
        self._board = board
        self._rng = random.Random(seed)
        self._over = over
        self._kinds = kinds
        self._own = {
            'contest': self._contest,
            'again': self._again,
            'stray': self._stray,
            'repeat': self._repeat,
            'licence': self._licence,
        }

    def run(self) -> None:
        """Do one thing after the other."""
        try:
            while not self._over.is_set():
                kind = self._rng.choice(self._kinds)
                if kind in self._own:
                    self._do_own(kind)
                else:
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
            if one.retired:
                self._release(one)

    def _do_own(self, kind: str) -> None:
        """Do something to an instance that nobody else knows."""
        self._board.count(kind)
        members: Sequence[Member] = _MEMBERS
        if kind in ('again', 'stray'):
            members = _GROUPED
        elif kind == 'licence':
            members = (_LICENSED,)
        one = self._board.own(self._rng.choice(members))
        self._own[kind](one)
        self._release(one)
        one.done_at = time.monotonic()

    def _contest(self, one: Instance) -> None:
        """Have an instance released just after its selection was sent."""
        request = _request([one])
        start = time.monotonic()
        # The broker has confirmed it when this returns.
        cast = self._lines.client.select_destinations_cast(
            _context([one]), request, reply_to=self._lines.answers.destination
        )
        sent = time.monotonic()
        self._pause(0.001, 0.02)
        self._call('release', [one])

        def ask() -> dict[str, Any]:
            return _told(
                self._lines.answers.wait(cast['request_id'], _CALL_TIMEOUT_S)
            )

        self._note('select', [one], ask, start, sent)

    def _again(self, one: Instance) -> None:
        """Have a member released, and selected again at the same time."""
        self._call('select', [one])
        for _ in range(3):
            release = threading.Thread(
                target=self._call, args=('release', [one])
            )
            release.start()
            self._pause(0, 0.02)
            self._call('select', [one])
            release.join()
        self._call('select', [one])
        self._pause(0.05, 0.3)

    def _stray(self, one: Instance) -> None:
        """Have a member moved by a request that does not name its group."""
        if self._call('select', [one]) and self._call(
            'move', [one], named=False
        ):
            self._pause(0.05, 0.1)
            self._call(self._rng.choice(('confirm', 'drop_moves')), [one])
        self._pause(0.05, 0.3)

    def _licence(self, one: Instance) -> None:
        """Have an instance hold what is not offered any more at times."""
        if self._call('select', [one]):
            self._pause(0.02, 0.3)
            if self._rng.random() < 0.5 and self._call('move', [one]):
                self._pause(0.02, 0.1)
                self._call(self._rng.choice(('confirm', 'drop_moves')), [one])
            self._pause(0, 0.1)

    def _repeat(self, one: Instance) -> None:
        """Have an instance selected in haste, until there is an answer."""
        for _ in range(_MOST_UNANSWERED):
            told = self._call('select', [one], client=self._lines.hasty)
            if told is not None:
                break
        self._pause(0.3, 1)
        self._call('select', [one])

    def _pause(self, least: float, most: float) -> None:
        time.sleep(self._rng.uniform(least, most))

    def _release(self, one: Instance) -> None:
        """Release until there is an answer."""
        while self._call('release', [one]) is None:
            continue

    def _call(
        self,
        kind: str,
        some: Sequence[Instance],
        named: bool = True,
        client: SchedulerClient | None = None,
    ) -> dict[str, Any] | None:
        """Call, and note the answer; return it, or None if there was none.

        :param named: whether a request names the group of its instances
        """
        caller, context = client or self._lines.client, _context(some)
        uuids = [one.uuid for one in some]

        def ask() -> dict[str, Any]:
            if kind in _CLAIMING:
                return _told(
                    caller.select_destinations(
                        context, _request(some, named), move=kind == 'move'
                    )
                )
            changed = getattr(caller, kind)(context, uuids)
            return {one: one in changed for one in uuids}

        self._board.count(kind)
        return self._note(kind, some, ask, time.monotonic())

    def _note(
        self,
        kind: str,
        some: Sequence[Instance],
        ask: Callable[[], dict[str, Any]],
        start: float,
        sent: float | None = None,
    ) -> dict[str, Any] | None:
        """Wait for an answer, and note it.

        :param sent: when the broker had it; None: that is not known before
            the caller has stopped waiting
        :return: by instance; empty: it was refused; None: there was none
        """
        uuids = [one.uuid for one in some]
        told = None
        try:
            told = ask()
        except errors.SchedulerError as error:
            if not isinstance(error, _UNKNOWN):
                lost = isinstance(error, errors.MaxRetriesExceeded)
                self._board.refused(
                    Refusal(
                        kind, start, time.monotonic(), uuids, error.name,
                        error.facts['attempts'] if lost else 0,
                    )
                )  # fmt: skip
                return {}
            self._unanswered(kind, uuids, error)
        except Exception as fault:
            self._unanswered(kind, uuids, fault)
        end = time.monotonic()
        for one in some:
            self._board.record(
                one,
                Operation(
                    kind,
                    start,
                    UNANSWERED if told is None else end,
                    told and told[one.uuid],
                    sent=sent or end,
                ),
            )
        return told

    def _unanswered(
        self, kind: str, uuids: Sequence[str], fault: Exception
    ) -> None:
        claiming = uuids if kind in _CLAIMING else ()
        self._board.count(
            self._cloud.missing_reply(fault, claiming, kind == 'move')
        )
        if not isinstance(fault, oslo_messaging.MessagingTimeout):
            time.sleep(0.2)


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
        with self._noting('sync', host, dict.fromkeys(here, True)):
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
        if kind == 'sync':
            others = dict.fromkeys(self._board.listed(start), False)
            concerned = others | concerned
        for one, listed in concerned.items():
            self._board.record(
                one, Operation(kind, start, end, host=host, listed=listed)
            )


class Changer(threading.Thread):
    """Has hosts and an aggregate offer some classes only at times.

    :ivar changes: how many there were
    """

    def __init__(
        self, cloud: Cloud, client: SchedulerClient, over: threading.Event
    ) -> None:
        super().__init__(name='changer')
        self.changes = 0
        self.fault: BaseException | None = None
        self._store = cloud.store
        self._client = client
        self._rng = random.Random(0)
        self._over = over

    def run(self) -> None:
        """Change what is offered; nothing while the database is away."""
        try:
            while not self._over.wait(_CHANGE_EVERY_S):
                licences = self._rng.choice((0, _LICENCES))
                if self._rng.random() < 0.5:
                    with contextlib.suppress(errors.StoreUnavailable):
                        self._change_aggregate(licences)
                else:
                    self._report(self._rng.choice([*CAPACITY_MB]), licences)
                self.changes += 1
        except BaseException as fault:
            self.fault = fault

    def _change_aggregate(self, licences: int) -> None:
        parsed = documents.inventory({'aggregates': [_aggregate(licences)]})
        self._store.write(
            lambda writer: aggregates.add(writer, parsed.aggregates)
        )

    def _report(self, host: str, licences: int) -> None:
        state = {'host': host, 'instances': [], 'resources': _offered(
            claim_samples.LOCAL, licences)}  # fmt: skip
        self._client.cast(CONTEXT, 'update_host_state', hosts=[state])


class Sampler(threading.Thread):
    """Reads the tables again and again.

    :ivar samples: how many snapshots it took
    :ivar wrong: what was wrong in each one that was
    :ivar wrong_at: when these were taken
    """

    def __init__(
        self, cloud: Cloud, board: Board, over: threading.Event
    ) -> None:
        super().__init__(name='sampler')
        self.samples = 0
        self.wrong: list[list[str]] = []
        self.wrong_at: list[float] = []
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
            self.wrong_at.append(time.monotonic())
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
    kinds: Sequence[str] = KINDS,
) -> dict[str, Any]:
    """Run callers on the hosts of :func:`inventory`; explain the answers.

    :param disturb: has faults happen for as long as callers are to run;
        None: nothing happens, and hosts report their instances
    :param quiet_s: until the last message has been processed
    :param kinds: what callers do
    :return: counts, what was wrong, and after how many seconds each first was
    """
    over = threading.Event()
    board = Board(seed)
    # Of a connection each: to close one takes seconds.
    clients = [cloud.client(_CALL_TIMEOUT_S) for _ in range(_CLIENTS)]
    hasty, answers = cloud.client(_HASTY_TIMEOUT_S), Answers(cloud)
    sampler = Sampler(cloud, board, over)
    crowd: list[Any] = [
        Caller(
            cloud,
            Lines(clients[n % len(clients)], hasty, answers),
            board,
            seed * 1000 + n,
            over,
            kinds,
        )
        for n in range(callers)
    ]
    changer = Changer(cloud, clients[0], over)
    crowd += sampler, changer
    if disturb is None:
        crowd += [
            Reporter(clients[n], board, n, over) for n in range(_REPORTERS)
        ]
    began = time.monotonic()
    for one in crowd:
        one.start()
    try:
        happened = disturb() if disturb else over.wait(seconds)
    finally:
        over.set()
        for one in crowd:
            one.join()
        answers.stop()
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
    judged, times = _judge(board)
    times['wrong_samples'] = sampler.wrong_at
    return {
        'faults': dict(happened or {}),
        **judged,
        'first_after_s': {
            kind: round(min(some) - began, 1)
            for kind, some in times.items()
            if some
        },
        'samples': sampler.samples,
        'changes': changer.changes,
        'wrong_samples': len(sampler.wrong),
        'first_wrong': sampler.wrong[:_SHOWN],
    }


def _judge(board: Board) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Return what of the answers nothing explains, and when each was got."""
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
    untrue = []
    for one in board.refusals:
        if one.error in ('NoValidHost', 'MaxRetriesExceeded'):
            host = room.fitting(one)
            text = host and f'fitted on {host}: {members[one.instances[0]]}'
        elif one.error == 'RequestCancelled':
            released = _was_released(one, histories)
            text = None if released else 'nobody released anything'
        else:
            text = 'that error is none of this'
        if text:
            untrue.append((one.end, f'{one}: {text}'))
    # The last answer that a caller got of each.
    times = {
        'without_order': [
            max(one.end for one in histories[name] if one.is_told)
            for name in without
        ],
        'untrue': [at for at, _ in untrue],
    }
    judged = {
        'operations': sum(map(len, histories.values())),
        'calls': dict(board.counts),
        'histories': len(histories),
        'without_order': len(without),
        'gave_up': len(gave_up),
        'untrue': len(untrue),
        'first_untrue': [text for _, text in untrue[:_SHOWN]],
        'first_without_order': [
            _readable(name, histories[name], board.refusals)
            for name in without[:_SHOWN]
        ],
    }
    return judged, times


def _was_released(one: Refusal, histories: dict[str, list[Operation]]) -> bool:
    """Whether an instance was released after a request was sent.

    Hosts that report where an instance is not end its claim, too.
    """
    return any(
        each.kind in ('release', 'drop_moves', 'has', 'gone', 'sync')
        and each.start <= one.end
        and each.end >= one.start
        for name in one.instances
        for each in histories[name]
    )


def _readable(
    name: str, history: Sequence[Operation], refusals: Sequence[Refusal]
) -> list[str]:
    """Return a history as lines to read, with what was refused."""
    first = min(one.start for one in history)
    lines = [
        (one.start, one.end, one.kind, f'{one.host}{"+" * one.listed}',
         one.answer)
        for one in history
    ]  # fmt: skip
    lines += [
        (one.start, one.end, one.kind, len(one.instances), one.error)
        for one in refusals
        if name in one.instances
    ]
    return [
        f'{start - first:.3f} {end - first:.3f} {kind} {details} {answer}'
        for start, end, kind, details, answer in sorted(
            lines, key=operator.itemgetter(0)
        )
    ]


def _context(some: Sequence[Instance]) -> dict[str, Any]:
    """Return a context; what is in a group belongs to a project at once."""
    return OWNER if all(one.member.group for one in some) else CONTEXT


def _told(answer: Any) -> dict[str, Any]:
    """Return the hosts of an answer, by instance."""
    return {
        placement['instance_uuid']: placement['selected']['host']
        for placement in answer['placements']
    }


def _request(some: Sequence[Instance], named: bool = True) -> dict[str, Any]:
    member = some[0].member
    classes = claim_samples.LOCAL, claim_samples.SHARED
    licences = {f'resources:{name}': '1' for name in classes}
    flavor = {
        'memory_mb': member.size,
        'vcpus': claim_samples.VCPUS,
        'extra_specs': licences if member.licensed else {},
    }
    return {
        'instance_uuids': [one.uuid for one in some],
        'flavor': flavor,
        'instance_group': member.group if named and member.group else None,
    }
