"""Several daemons on real servers, what is done to them, and the books.

Each scenario returns figures; :func:`check` holds them to what was promised.
The tests run them small, ``benchmarks.faults`` at full length.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from scheduler_service import conf as options
from scheduler_service import (
    errors,
    rpc,  # noqa: F401 - chooses the bus's backend
)
from scheduler_service.model import documents
from scheduler_service.rpc import transport
from scheduler_service.rpc.client import SchedulerClient
from scheduler_service.settings import Settings
from scheduler_service.store import audit, inventory, migrate, schema
from scheduler_service.store.connection import Store
from tests import servers
from tests.conftest import new_database

import oslo_messaging  # isort: skip

CONTEXT = {'user_id': 'u', 'project_id': 'p', 'roles': ['member']}
SLOT_MB = 512
FALLBACK = {
    name: Settings().default_ratio(name)
    for name in ('VCPU', 'MEMORY_MB', 'DISK_GB')
}
# As the shipped sample has it: queues that survive the broker's restart.
DURABLE = {
    'amqp_durable_queues': True,
    'rabbit_quorum_queue': True,
    'rabbit_transient_quorum_queue': True,
}
_READY_S = 60.0


@dataclasses.dataclass
class Cloud:
    """Daemons as processes on one topic and one store."""

    store: Store
    bus: str
    topic: str
    config: pathlib.Path
    log: pathlib.Path
    running: list[subprocess.Popen[bytes]] = dataclasses.field(
        default_factory=list
    )
    buses: list[Any] = dataclasses.field(default_factory=list)

    def start(self) -> None:
        """Start one more daemon, without waiting for it."""
        with self.log.open('ab') as log:
            self.running.append(
                subprocess.Popen(
                    [sys.executable, '-u', '-m',
                     'scheduler_service.cmd.service',
                     '--config-file', str(self.config)],
                    stdout=log, stderr=log,
                )
            )  # fmt: skip

    def said(self, text: str) -> int:
        """Return how many lines the daemons said with a text."""
        return self.log.read_text(errors='replace').count(text)

    def wait_for(self, text: str, count: int) -> None:
        """Wait until the daemons have said a text so often."""
        deadline = time.monotonic() + _READY_S
        while self.said(text) < count:
            if time.monotonic() > deadline:
                raise AssertionError(self.log.read_text()[-3000:])
            time.sleep(0.05)

    def client(self, timeout: float = 60.0) -> SchedulerClient:
        """Return a client of its own connection."""
        conf = self.conf()
        bus = transport.for_client(conf, self.bus)
        for name, value in DURABLE.items():
            conf.set_override(name, value, 'oslo_messaging_rabbit')
        self.buses.append(bus)
        return SchedulerClient(conf, bus, self.topic, timeout=timeout)

    def conf(self) -> Any:
        """Return options of a client."""
        conf = options.new_config()
        transport.prepare(conf)
        options.parse(
            conf, [], default_config_files=[], default_config_dirs=[]
        )
        return conf

    def bring(self, document: Any) -> None:
        """Import a document."""
        parsed = documents.inventory(document)
        self.store.write(lambda writer: inventory.Importer(writer).run(parsed))
        # Every daemon sees it before anything is asked.
        time.sleep(1.5)

    def allocated(self) -> dict[str, set[int]]:
        """Return the hosts that each consumer holds something of."""
        table = schema.allocations
        found: dict[str, set[int]] = {}
        with self.store.reading() as conn:
            rows = conn.execute(sa.select(table.c.consumer_uuid,
                                          table.c.host_id))  # fmt: skip
            for consumer, host_id in rows:
                found.setdefault(consumer, set()).add(host_id)
        return found

    def books(self) -> list[str]:
        """Return what an audit finds."""
        with self.store.reading() as conn:
            found = audit.audit(conn, FALLBACK).findings
        return [f'{one.kind} {one.host} {one.text}' for one in found]


@contextlib.contextmanager
def cloud(
    database: str, bus: str, daemons: int, extra: str = ''
) -> Iterator[Cloud]:
    """Run daemons on an empty database of a server, and on a topic.

    :param extra: lines of [scheduler]
    """
    store = Store.connect(new_database(database), max_pool_size=20)
    migrate.sync(store)
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        topic = f't{uuid.uuid4().hex[:8]}'
        url = store.engine.url.render_as_string(hide_password=False)
        lines = [f'{name} = true' for name in DURABLE]
        (place / 'a.conf').write_text(
            f'[DEFAULT]\ntransport_url = {bus}\n'
            f'[database]\nconnection = {url}\n'
            f'[scheduler]\ntopic = {topic}\n{extra}'
            '[oslo_messaging_rabbit]\n' + '\n'.join(lines) + '\n'
        )
        (place / 'log').touch()
        made = Cloud(store, bus, topic, place / 'a.conf', place / 'log')
        try:
            for _ in range(daemons):
                made.start()
            made.wait_for('Ready:', daemons)
            yield made
        finally:
            for bus_used in made.buses:
                bus_used.cleanup()
            for one in made.running:
                one.kill()
                one.wait()
            store.dispose()


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
    lost = sum(one.ping(CONTEXT)['counters'].get('claims_lost', 0)
               for one in clients)  # fmt: skip
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
    deadline = time.monotonic() + 90
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
    """Kill a random daemon with -9 every so many seconds; start another."""
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
    """Restart a server so often, a few seconds apart."""

    def work(happened: Counter[str], over: threading.Event) -> None:
        for _ in range(times):
            time.sleep(2)
            server.kill(signal.SIGINT if _is_postgresql(server)
                        else signal.SIGTERM)  # fmt: skip
            server.relaunch()
            server.wait(lambda: servers.answers(server.port))
            happened['restarts'] += 1

    return _meanwhile(work)


def _is_postgresql(server: servers.Server) -> bool:
    """Whether a server wants SIGINT to stop without waiting for clients."""
    return 'postgres' in server._args[0]


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
    servers.rabbitmqctl(server, 'set_disk_free_limit', '1000000000000000')
    time.sleep(6)
    stuck_at = len(answered)
    servers.rabbitmqctl(server, 'set_disk_free_limit', '50MB')
    deadline = time.monotonic() + 60
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
        'said': min(cloud.said('the broker takes no answers'), 1),
        'wrong': dict(failed),
        'books': cloud.books(),
    }
