"""Callers with long memories, and what is done to daemons and servers.

Each caller owns its instances and knows, by the answers it got, where each
of them has to be. Where a call ended without an answer it takes back what
the call may have done, until that is answered. In the end the rows of the
database are compared with what callers know.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from typing import Any

import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.store import schema
from scheduler_service.store.records import daemons
from tests.rigs import recordings
from tests.support import servers
from tests.support.clouds import Cloud
from tests.support.documents import CONTEXT
from tests.support.waiting import wait_until

HOSTS = 60
_QUIET_S = 8.0
# A caller that gets no answer for so long fails the run, in seconds.
_PATIENCE_S = 300.0
# In which a database that was killed is up again, in seconds.
_REVIVED_S = 300.0
_GROUPS = 40
_MOST_INSTANCES = 60
_SIZES_MB = (256, 512, 1024, 4096)


class NoAnswer(Exception):
    """A call ended without an answer: nobody knows what it did."""


@dataclasses.dataclass
class Known:
    """What a caller knows of one of its instances.

    :ivar host: where it is; None: nowhere
    :ivar target: where it moves to
    :ivar group: of which it is a member
    """

    host: str | None = None
    target: str | None = None
    group: str | None = None


def inventory() -> dict[str, Any]:
    """Return hosts that fill up, and groups that keep apart."""
    return {
        'hosts': [
            {'host': f'h{n}', 'vcpus': 640, 'memory_mb': 8192,
             'local_gb': 1000, 'ram_allocation_ratio': 1.0}
            for n in range(HOSTS)
        ],
        'server_groups': [
            {'uuid': _group(n), 'policy': 'anti-affinity'}
            for n in range(_GROUPS)
        ],
    }  # fmt: skip


class Caller(threading.Thread):
    """One caller: selects, releases, moves and confirms until told to stop.

    :ivar known: what it knows, by instance
    :ivar done: how often each thing was done
    :ivar untrue: answers that deny what was done before them
    """

    # Seconds after which a call has no answer.
    timeout_s = 15.0

    def __init__(self, cloud: Cloud, seed: int, over: threading.Event) -> None:
        # A fault of the rig ends the process, whatever callers wait for.
        super().__init__(name=f'caller-{seed}', daemon=True)
        self.known: dict[str, Known] = {}
        self.done: Counter[str] = Counter()
        self.untrue: list[str] = []
        self.fault: BaseException | None = None
        self._cloud = cloud
        self._client = cloud.client(self.timeout_s)
        self._rng = random.Random(seed)
        self._over = over

    def run(self) -> None:
        """Do one thing after the other."""
        steps: tuple[Callable[[], None], ...] = (
            self._select, self._select, self._select_many,
            self._release, self._release, self._contest,
            self._move, self._settle_move, self._confirm,
        )  # fmt: skip
        try:
            while not self._over.is_set():
                self._rng.choice(steps)()
        except BaseException as fault:
            self.fault = fault

    def _select(self) -> None:
        count = self._rng.choice((1, 1, 1, 2, 3))
        if len(self._placed()) + count > _MOST_INSTANCES:
            self._release()
            return
        self._ask(self._request(count))

    def _ask(self, request: dict[str, Any]) -> None:
        try:
            answer = self._call('select_destinations', request)
        except NoAnswer:
            self._take_back(request['instance_uuids'])
        except errors.SchedulerError:
            self.done['refused'] += 1
        else:
            self._note(request, answer)

    def _select_many(self) -> None:
        requests = [self._request(1) for _ in range(4)]
        for request in requests:
            request['flavor']['memory_mb'] = 64
        try:
            answers = self._call(
                'schedule_many',
                [{'select_destinations': request} for request in requests],
            )
        except NoAnswer:
            self._take_back(
                [request['instance_uuids'][0] for request in requests]
            )  # fmt: skip
            return
        for request, answer in zip(requests, answers, strict=True):
            if 'result' in answer:
                self._note(request, answer['result'])
            else:
                self.done['refused'] += 1
        self._release()

    def _release(self) -> None:
        """Release one instance, and sometimes what was refused."""
        if not (placed := self._placed()):
            return
        one = self._rng.choice(placed)
        try:
            released = self._call('release', [one])
        except NoAnswer:
            self._take_back([one])
            return
        if released != [one]:
            self.untrue.append(f'release of {one} answered {released}')
        self.known[one] = Known()

    def _contest(self) -> None:
        """Have an instance released while it is selected.

        Which comes first is not known: the same request again tells.
        """
        if len(self._placed()) >= _MOST_INSTANCES:
            self._release()
            return
        request = self._request(1)
        uuids = request['instance_uuids']
        with futures.ThreadPoolExecutor() as beside:
            both = [
                beside.submit(self._call, 'select_destinations', request),
                beside.submit(self._call, 'release', uuids),
            ]
        try:
            for one in both:
                with contextlib.suppress(errors.SchedulerError):
                    one.result()
        except NoAnswer:
            self._take_back(uuids)
        else:
            self._ask(request)

    def _move(self) -> None:
        resting = [one for one in self._placed() if not self.known[one].target]
        if not resting:
            return
        one = self._rng.choice(resting)
        known = self.known[one]
        request = {
            'instance_uuids': [one],
            'flavor': {'memory_mb': 64},
            'instance_group': known.group,
        }
        try:
            answer = self._call('select_destinations', request, move=True)
        except NoAnswer:
            self._repeat('drop_moves', [one])
        except errors.SchedulerError:
            self.done['refused'] += 1
        else:
            (placement,) = answer['placements']
            known.target = placement['selected']['host']

    def _settle_move(self) -> None:
        moving = [one for one in self._placed() if self.known[one].target]
        if not moving:
            return
        one = self._rng.choice(moving)
        known = self.known[one]
        method = self._rng.choice(('confirm', 'drop_moves'))
        try:
            self._call(method, [one])
        except NoAnswer:
            self._repeat(method, [one])
        if method == 'confirm':
            known.host = known.target
        known.target = None

    def _confirm(self) -> None:
        resting = [one for one in self._placed() if not self.known[one].target]
        if resting:
            self._repeat('confirm', [self._rng.choice(resting)])

    def _request(self, count: int) -> dict[str, Any]:
        """Return a request; one in twenty fits nowhere."""
        uuids = [str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
                 for _ in range(count)]  # fmt: skip
        size = 10**6 if self._rng.random() < 0.05 else 0
        group = None
        if count == 1 and self._rng.random() < 0.3:
            group = _group(self._rng.randrange(_GROUPS))
        for one in uuids:
            self.known[one] = Known(group=group)
        return {
            'request_id': f'req-{uuids[0]}',
            'instance_uuids': uuids,
            'flavor': {'memory_mb': size or self._rng.choice(_SIZES_MB)},
            'instance_group': group,
        }

    def _note(self, request: Any, answer: Any) -> None:
        for placement in answer['placements']:
            one = placement['instance_uuid']
            self.known[one].host = placement['selected']['host']
        self.done['placed'] += len(request['instance_uuids'])

    def _placed(self) -> list[str]:
        return [one for one, known in self.known.items() if known.host]

    def _take_back(self, uuids: list[str]) -> None:
        """Release until it is answered; then nothing is there."""
        self._repeat('release', uuids)
        for one in uuids:
            self.known[one] = Known()

    def _repeat(self, method: str, uuids: list[str]) -> None:
        """Call until it is answered.

        :raises AssertionError: that takes far too long
        """
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            with contextlib.suppress(NoAnswer):
                self._call(method, uuids)
                return
        raise AssertionError(f'{method} of {uuids} is not answered')

    def _call(self, method: str, *args: Any, **how: Any) -> Any:
        """Call, and count.

        :raises NoAnswer: timed out, or refused for a reason of the moment
        :raises SchedulerError: refused for good
        """
        self.done[method] += 1
        try:
            return getattr(self._client, method)(CONTEXT, *args, **how)
        except (
            errors.NoValidHost,
            errors.InvalidRequest,
            errors.RequestCancelled,
        ):
            raise
        except Exception as fault:
            claiming = _claiming(method, *args)
            missing = self._cloud.missing_reply(fault, claiming, bool(how))
            self.done[missing] += 1
            time.sleep(0.2)
            raise NoAnswer from fault


def _claiming(method: str, asked: Any) -> list[str]:
    """Return the instances that a call claims places for."""
    if method == 'select_destinations':
        return list(asked['instance_uuids'])
    if method == 'schedule_many':
        return [
            uuid
            for entry in asked
            for uuid in entry['select_destinations']['instance_uuids']
        ]
    return []


def run(
    cloud: Cloud,
    broker: servers.Server | None,
    database: servers.Server | None,
    callers: int,
    seconds: float,
    every: float,
    seed: int = 1,
    kind: type[Caller] = Caller,
    more: Sequence[Callable[[], None]] = (),
    least_faults: int = 0,
    least_placed: int = 0,
    quiet_s: float = _QUIET_S,
) -> dict[str, Any]:
    """Run callers while faults happen; return what came of it.

    :param every: seconds between faults
    :param kind: of caller
    :param more: faults beside those of daemons and servers
    :param least_faults: how many have to happen before it ends
    :param least_placed: and how many requests have to be placed
    :param quiet_s: before rows are read, in seconds: a message that was
        delivered again may still be under way
    :return: counts, ``wrong`` rows, ``untrue`` answers, and what of the
        recording is ``contradicted``
    """
    cloud.bring(inventory())
    over = threading.Event()
    crowd = [kind(cloud, seed * 1000 + n, over) for n in range(callers)]
    for one in crowd:
        one.start()
    try:
        happened = disturb(
            cloud, broker, database, seconds, every, seed, more, least_faults
        )
        wait_until(
            lambda: (
                any(one.fault is not None for one in crowd)
                or sum(one.done['placed'] for one in crowd) >= least_placed
            ),
        )
    finally:
        over.set()
    for one in crowd:
        one.join()
        if one.fault is not None:
            raise one.fault
    time.sleep(quiet_s)
    known = {
        uuid: one for caller in crowd for uuid, one in caller.known.items()
    }
    places = {
        uuid: {host for host in (one.host, one.target) if host}
        for uuid, one in known.items()
    }
    return {
        'faults': dict(happened),
        'calls': dict(sum((one.done for one in crowd), Counter())),
        'instances': len(known),
        'untrue': [text for one in crowd for text in one.untrue],
        'wrong': wrong_rows(cloud, known),
        'books': cloud.books(),
        'contradicted': recordings.contradicted(
            cloud, places, seed, quiet_s > daemons.SILENT_S
        ),
    }


def disturb(
    cloud: Cloud,
    broker: servers.Server | None,
    database: servers.Server | None,
    seconds: float,
    every: float,
    seed: int,
    more: Sequence[Callable[[], None]] = (),
    least: int = 0,
) -> Counter[str]:
    """Do something to daemons or servers, again and again.

    :param broker: None: there is no such server, as *database*
    :param every: seconds between faults; 0: there are none
    :param more: further faults
    :param least: how many have to happen before it ends
    """
    rng = random.Random(seed)
    happened: Counter[str] = Counter()

    def kill() -> None:
        victim = rng.choice(cloud.running)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        cloud.running.remove(victim)
        cloud.start()

    def stop() -> None:
        victim = rng.choice(cloud.running)
        victim.send_signal(signal.SIGSTOP)
        time.sleep(2)
        victim.send_signal(signal.SIGCONT)

    def reset() -> None:
        assert broker is not None
        # It may have been restarted a moment ago.
        servers.evaluate(broker, servers.STARTED)
        servers.call(
            broker, 'rabbit_networking:close_all_connections', 'chaos'
        )

    def restart_database() -> None:
        assert database is not None
        database.kill(signal.SIGKILL)
        revive(database)

    def restart_broker() -> None:
        assert broker is not None
        broker.kill()
        broker.relaunch()

    if not every:
        time.sleep(seconds)
        return happened
    resets = [] if broker is None else [reset, reset]
    faults = [kill, kill, kill, kill, stop, *resets, *more]
    if database is not None:
        faults.append(restart_database)
    end = time.monotonic() + seconds
    rare = 0
    while rare < least or time.monotonic() < end:
        time.sleep(every)
        rare += 1
        is_rare = broker is not None and rare % 25 == 0
        fault = restart_broker if is_rare else rng.choice(faults)
        fault()
        happened[fault.__name__] += 1
    return happened


def revive(database: servers.Server) -> None:
    """Start a server again that was killed.

    :raises AssertionError: it does not come up
    """
    until = time.monotonic() + _REVIVED_S
    while time.monotonic() < until:
        database.relaunch()
        # What a killed one left holds its memory for a moment: a new one then
        # ends at once.
        with contextlib.suppress(RuntimeError):
            database.wait(lambda: servers.answers(database.port))
            return
    raise AssertionError('the database does not come up again')


def wrong_rows(cloud: Cloud, known: dict[str, Known]) -> list[str]:
    """Return each difference between rows and what callers know."""
    inst, moves = schema.instances, schema.moves
    with cloud.store.reading() as conn:
        rows = _pairs(conn, inst.c.uuid, inst.c.host, inst.c.kind != 'pod')
        moving = _pairs(conn, moves.c.instance_uuid, moves.c.host)
        names = _pairs(conn, schema.hosts.c.id, schema.hosts.c.host)
    held = {
        one: {names[host] for host in hosts}
        for one, hosts in cloud.allocated().items()
    }
    wrong = [f'{row}: nobody asked for it' for row in rows.keys() - known]
    for one, told in known.items():
        places = {host for host in (told.host, told.target) if host}
        found = (rows.get(one), moving.get(one), held.get(one, set()))
        if found != (told.host, told.target, places):
            wrong.append(f'{one}: told {told}, found {found}')
    return wrong + _together(known.values())


def _pairs(conn: Any, key: Any, value: Any, *where: Any) -> dict[Any, Any]:
    return dict(conn.execute(sa.select(key, value).where(*where)).all())


def _together(known: Iterable[Known]) -> list[str]:
    """Return members of one group that are on the same host."""
    members = Counter(
        (one.group, one.host) for one in known if one.group and one.host
    )
    return [
        f'group {group}: {count} members on {host}'
        for (group, host), count in members.items()
        if count > 1
    ]


def _group(number: int) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, f'group-{number}'))
