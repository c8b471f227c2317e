"""Several daemons on real servers, what is done to them, and the books.

Each scenario returns figures; :func:`check` holds them to what was promised.
The tests run them small, ``benchmarks.faults`` at full length.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from scheduler_service import (
    errors,
    rpc,  # noqa: F401 - chooses the bus's backend
)
from scheduler_service.store import schema
from tests.support import servers
from tests.support.clouds import Cloud
from tests.support.documents import CONTEXT

import oslo_messaging  # isort: skip
from tests.support.waiting import LIMIT_S

SLOT_MB = 512


def check(told: dict[str, Any]) -> None:
    """Hold a scenario's figures to what is promised."""
    for name in ('books', 'wrong', 'lost', 'untrue', 'violations'):
        assert not told.get(name), {name: told[name]}


def crowd(
    callers: int, tasks: Sequence[Any], work: Callable[..., Any]
) -> None:
    """Run ``work(task, client_number)`` of every task in threads."""
    waiting = iter(list(tasks))
    lock = threading.Lock()

    def call(number: int) -> None:
        while True:
            with lock:
                task = next(waiting, None)
            if task is None:
                return
            work(task, number)

    threads = [
        threading.Thread(target=call, args=(n,)) for n in range(callers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def nearly_full(
    cloud: Cloud, hosts: int, callers: int, requests: int
) -> dict[str, Any]:
    """Ask for more than there is, from many callers at once."""
    rng = random.Random(7)
    free = [rng.randint(1, requests // hosts) for _ in range(hosts)]
    cloud.bring({'hosts': [
        {'host': f'h{n}', 'vcpus': 64, 'memory_mb': 65536, 'local_gb': 1000,
         'ram_allocation_ratio': 1.0,
         'memory_mb_used': 65536 - SLOT_MB * slots}
        for n, slots in enumerate(free)
    ]})  # fmt: skip
    clients = [cloud.client(120) for _ in range(4)]
    placed: dict[str, str] = {}
    refused: list[float] = []
    failed: Counter[str] = Counter()

    def ask(one: str, number: int) -> None:
        asked = {'instance_uuids': [one], 'flavor': {'memory_mb': SLOT_MB}}
        try:
            answer = clients[number % len(clients)].select_destinations(
                CONTEXT, asked
            )
            placed[one] = answer['placements'][0]['selected']['host']
        except errors.NoValidHost as error:
            if error.name == 'NoValidHost':
                refused.append(time.time())
            else:
                failed[error.name] += 1
        except Exception as error:
            failed[type(error).__name__] += 1

    start = time.monotonic()
    crowd(callers, [str(uuid.uuid4()) for _ in range(requests)], ask)
    took = time.monotonic() - start
    inst = schema.instances
    with cloud.store.reading() as conn:
        rows = conn.execute(
            sa.select(inst.c.uuid, inst.c.host, inst.c.created_at)
        ).all()
    room = sum(free)
    made = sorted(row.created_at for row in rows)
    # A refusal is true if every slot was promised by the time it came.
    full_at = made[room - 1] if len(made) >= room else float('inf')
    held = cloud.allocated()
    lost = sum(client.ping(CONTEXT)['counters'].get('claims_lost', 0)
               for client in clients)  # fmt: skip
    return {
        'requests': requests,
        'room': room,
        'placed': len(placed),
        'refused': len(refused),
        'wrong': dict(failed)
        or [
            row.uuid
            for row in rows
            if placed.get(row.uuid) != row.host
            or len(held.get(row.uuid, ())) != 1
        ]
        or sorted(placed.keys() ^ {row.uuid for row in rows}),
        'untrue': sum(at < full_at for at in refused),
        'books': cloud.books(),
        'claims_lost_seen': lost,
        'seconds': round(took, 1),
        'rate': round(requests / took),
    }


def groups(
    cloud: Cloud, policy: str, groups: int, members: int, callers: int
) -> dict[str, Any]:
    """Place the members of groups one by one, all at once."""
    named = [str(uuid.uuid4()) for _ in range(groups)]
    cloud.bring({
        'hosts': [
            {'host': f'h{n}', 'vcpus': 640, 'memory_mb': 655360,
             'local_gb': 1000}
            for n in range(50)
        ],
        'server_groups': [
            {'uuid': one, 'policy': policy} for one in named
        ],
    })  # fmt: skip
    clients = [cloud.client(120) for _ in range(4)]
    failed: Counter[str] = Counter()
    places: dict[str, list[str]] = {one: [] for one in named}

    def ask(group: str, number: int) -> None:
        asked = {'instance_group': group, 'flavor': {'memory_mb': 64}}
        try:
            answer = clients[number % len(clients)].select_destinations(
                CONTEXT, asked
            )
            places[group].append(answer['placements'][0]['selected']['host'])
        except Exception as error:
            failed[type(error).__name__] += 1

    crowd(callers, [one for one in named for _ in range(members)], ask)
    apart = policy == 'anti-affinity'
    broken = [
        group
        for group, hosts in places.items()
        if len(set(hosts)) != (len(hosts) if apart else 1)
    ]
    return {
        'policy': policy,
        'groups': groups,
        'placed': sum(map(len, places.values())),
        'violations': broken,
        'wrong': dict(failed),
        'books': cloud.books(),
    }


class _Takes:
    def __init__(self, found: dict[str, list[Any]]) -> None:
        self._found = found

    def scheduler_answer(self, ctxt: Any, **told: Any) -> None:
        self._found.setdefault(told['request_id'], []).append(told)


def casts(
    cloud: Cloud,
    count: int,
    disturbed: contextlib.AbstractContextManager[Counter[str]],
    seconds: float = 10.0,
) -> dict[str, Any]:
    """Cast requests, evenly over some seconds, while something happens."""
    cloud.bring({'hosts': [
        {'host': f'h{n}', 'vcpus': 640, 'memory_mb': 655360, 'local_gb': 1000}
        for n in range(50)
    ]})  # fmt: skip
    client = cloud.client()
    found: dict[str, list[Any]] = {}
    listener = oslo_messaging.get_rpc_server(
        cloud.client().transport,
        oslo_messaging.Target(topic=f'{cloud.topic}-answers', server='me'),
        [_Takes(found)],
    )
    listener.start()
    sent: dict[str, str] = {}
    with disturbed as happened:
        for _ in range(count):
            asked = client.select_destinations_cast(
                CONTEXT,
                {'flavor': {'memory_mb': 64}},
                reply_to={'topic': f'{cloud.topic}-answers'},
            )
            sent[asked['request_id']] = asked['instance_uuids'][0]
            time.sleep(seconds / count)
    deadline = time.monotonic() + LIMIT_S
    while len(found) < count and time.monotonic() < deadline:
        time.sleep(0.1)
    listener.stop()
    listener.wait()
    held = cloud.allocated()
    return {
        'casts': count,
        'answers': len(found),
        'answered_twice': sum(len(told) > 1 for told in found.values()),
        'lost': sorted(sent.keys() - found.keys()),
        'wrong': [
            told[0]['error'] or told
            for request_id, told in found.items()
            if any(one['error'] for one in told)
            or len({str(one['result']) for one in told}) != 1
            or len(held.get(sent[request_id], ())) != 1
        ],
        'books': cloud.books(),
        **happened,
    }


@contextlib.contextmanager
def _meanwhile(
    work: Callable[[Counter[str], threading.Event], None],
) -> Iterator[Counter[str]]:
    happened: Counter[str] = Counter()
    over = threading.Event()
    thread = threading.Thread(target=work, args=(happened, over))
    thread.start()
    try:
        yield happened
    finally:
        over.set()
        thread.join()


def killing(
    cloud: Cloud, every: float
) -> contextlib.AbstractContextManager[Counter[str]]:
    """Kill a random daemon with -9 again and again; start another."""
    rng = random.Random(3)

    def work(happened: Counter[str], over: threading.Event) -> None:
        while not over.wait(every):
            victim = rng.choice(cloud.running)
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            cloud.running.remove(victim)
            cloud.start()
            happened['kills'] += 1

    return _meanwhile(work)


def restarting(
    server: servers.Server, times: int
) -> contextlib.AbstractContextManager[Counter[str]]:
    """Restart a server a number of times, two seconds apart."""

    def work(happened: Counter[str], over: threading.Event) -> None:
        for _ in range(times):
            time.sleep(2)
            server.kill()
            server.relaunch()
            server.wait(lambda: servers.answers(server.port))
            happened['restarts'] += 1

    return _meanwhile(work)


def _until_still(grows: list[Any], quiet_s: float = 1.0) -> None:
    """Wait until a list has not grown for a while."""
    length = -1
    while length < len(grows):
        length = len(grows)
        time.sleep(quiet_s)


def full_disk(
    cloud: Cloud, server: servers.Server, requests: int
) -> dict[str, Any]:
    """Let the broker run out of disk for a while, under load."""
    cloud.bring({'hosts': [
        {'host': 'h', 'vcpus': 640, 'memory_mb': 655360, 'local_gb': 1000},
    ]})  # fmt: skip
    clients = [cloud.client() for _ in range(4)]
    answered: list[Any] = []
    failed: Counter[str] = Counter()
    over = threading.Event()

    def ask(number: int) -> None:
        client = clients[number % len(clients)]
        while not over.is_set():
            asked = {'flavor': {'memory_mb': 1}}
            try:
                answered.append(client.select_destinations(CONTEXT, asked))
            except Exception as error:
                failed[type(error).__name__] += 1

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    while len(answered) < requests:
        time.sleep(0.01)
    limit = 'rabbit_disk_monitor:set_disk_free_limit'
    # Every caller waits for the daemon when the disk is full, so there are
    # more answers to give than a full broker still takes, one a connection.
    cloud.signal(signal.SIGSTOP)
    _until_still(answered)
    servers.evaluate(server, f'{limit}(1000000000000000)')
    cloud.signal(signal.SIGCONT)
    time.sleep(6)
    stuck_at = len(answered)
    servers.evaluate(server, f'{limit}(50000000)')
    deadline = time.monotonic() + LIMIT_S
    while len(answered) < stuck_at + requests:
        if time.monotonic() > deadline:
            failed['stuck'] += 1
            break
        time.sleep(0.05)
    over.set()
    for thread in threads:
        thread.join()
    time.sleep(1)
    return {
        'answers': len(answered),
        'said': min(cloud.said('the broker accepts no replies'), 1),
        'wrong': dict(failed),
        'books': cloud.books(),
    }
