"""Daemons for tests: in this process on any bus, and as processes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scheduler_service import conf as options
from scheduler_service import rpc  # noqa: F401 - chooses the bus's backend
from scheduler_service.cmd.daemon import Daemon
from scheduler_service.model import documents
from scheduler_service.rpc import transport
from scheduler_service.rpc.client import SchedulerClient
from scheduler_service.store import inventory
from scheduler_service.store.connection import Store
from tests import clouds

import oslo_messaging  # isort: skip

CONTEXT = {'user_id': 'u', 'project_id': 'p', 'roles': ['member']}
ADMIN = {**CONTEXT, 'roles': ['admin']}
DEFAULT_POOL = '794ccc2c-d751-44fe-b57f-8894c9f5c842'
GOLD_POOL = '11111111-0000-4000-8000-000000000001'
INVENTORY = {
    'pools': [
        {'id': DEFAULT_POOL, 'name': 'default', 'attributes': {'l': 'silver'}},
        {'id': GOLD_POOL, 'name': 'gold', 'attributes': {'l': 'gold'}},
    ],
    'hosts': [
        {'host': f'compute-{n}', 'vcpus': 8, 'memory_mb': 8192 + n,
         'local_gb': 100, 'ram_allocation_ratio': 1.0}
        for n in range(1, 5)
    ],
    'aggregates': [
        {'id': 1, 'hosts': ['compute-1', 'compute-2'],
         'metadata': {'availability_zone': 'north'}},
    ],
}  # fmt: skip
SMALL = {'vcpus': 1, 'memory_mb': 512, 'root_gb': 1}


def bring(store: Store, document: Any = None) -> None:
    """Import a document."""
    parsed = documents.inventory(document or INVENTORY)
    store.write(lambda writer: inventory.Importer(writer).run(parsed))


def new_conf(**more: Any) -> Any:
    """Return options; *more* are ``group__name`` values."""
    conf = options.new_config()
    transport.prepare(conf)
    options.parse(conf, [], default_config_files=[], default_config_dirs=[])
    # Registers the options of notifications.
    transport.for_notifications(conf, 'inproc://')
    for name, value in more.items():
        group, _, option = name.rpartition('__')
        conf.set_override(option, value, group=group or None)
    return conf


@dataclasses.dataclass
class Service:
    """A daemon in this process, and a client of it."""

    daemon: Daemon
    client: SchedulerClient
    store: Store
    conf: Any
    url: str

    def answers(self, topic: str) -> queue.Queue[dict[str, Any]]:
        """Listen on a topic; return the queue that its messages fill."""
        found: queue.Queue[dict[str, Any]] = queue.Queue()
        bus = transport.for_client(self.conf, self.url)
        target = oslo_messaging.Target(topic=topic, server='test')
        server = oslo_messaging.get_rpc_server(bus, target, [_Takes(found)])
        server.start()
        self.listeners.append(server)
        self.buses.append(bus)
        return found

    listeners: list[Any] = dataclasses.field(default_factory=list)
    buses: list[Any] = dataclasses.field(default_factory=list)


class _Takes:
    def __init__(self, found: queue.Queue[dict[str, Any]]) -> None:
        self._found = found

    def scheduler_answer(self, ctxt: Any, **told: Any) -> None:
        self._found.put(told)


@pytest.fixture
def make_service(
    make_store: Any, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Service]]:
    """Give a function that starts a daemon in this process."""
    running: list[Service] = []

    def make(
        bus: str = 'inproc',
        database: str = 'sqlite',
        url: str = '',
        **more: Any,
    ) -> Service:
        store = make_store(database)
        bring(store)
        url = url or f'inproc://{uuid.uuid4().hex}/'
        if bus == 'rabbit':
            url = request.getfixturevalue('rabbitmq')[1]
            more.setdefault('scheduler__topic', f't{uuid.uuid4().hex[:8]}')
        connection = store.engine.url.render_as_string(hide_password=False)
        conf = new_conf(database__connection=connection, **more)
        daemon = Daemon(conf, url)
        daemon.start()
        client = SchedulerClient(
            conf,
            transport.for_client(conf, url),
            topic=conf.scheduler.topic,
            timeout=30,
        )
        running.append(Service(daemon, client, store, conf, url))
        return running[-1]

    yield make
    for service in running:
        for listener in service.listeners:
            listener.stop()
            listener.wait()
        for used in service.buses:
            used.cleanup()
        service.daemon.stop()
        service.client.transport.cleanup()


@dataclasses.dataclass
class Process:
    """A daemon as a process of its own, and what it has said."""

    popen: subprocess.Popen[str]
    lines: list[str]

    def wait_for(self, text: str, seconds: float = 40.0) -> str:
        """Wait for a line with *text*; return it."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if text in line:
                    return line
            if self.popen.poll() is not None:
                time.sleep(0.2)
                if not any(text in line for line in self.lines):
                    break
            time.sleep(0.02)
        raise AssertionError(f'no "{text}" in: {"".join(self.lines)[-3000:]}')

    def count(self, text: str) -> int:
        """Return how many lines have *text*."""
        return sum(text in line for line in self.lines)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; return the exit status."""
        self.popen.send_signal(number)
        return self.popen.wait(40)


@pytest.fixture
def launch(tmp_path: pathlib.Path) -> Iterator[Callable[..., Process]]:
    """Give a function that starts a daemon as a process."""
    running: list[Process] = []

    def start(database: str, bus: str, extra: str = '', **env: str) -> Process:
        path = tmp_path / f'{len(running)}.conf'
        path.write_text(
            f'[DEFAULT]\ntransport_url = {bus}\n'
            f'[database]\nconnection = {database}\n{extra}\n'
        )
        popen = subprocess.Popen(
            [sys.executable, '-u', '-m', 'scheduler_service.cmd.service',
             '--config-file', str(path)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **env},
        )  # fmt: skip
        process = Process(popen, [])

        def follow() -> None:
            assert popen.stdout is not None
            for line in popen.stdout:
                process.lines.append(line)

        threading.Thread(target=follow, daemon=True).start()
        running.append(process)
        return process

    yield start
    for process in running:
        if process.popen.poll() is None:
            process.popen.kill()
            process.popen.wait()
        assert process.popen.stdout is not None
        process.popen.stdout.close()


@pytest.fixture
def connect() -> Iterator[Callable[..., SchedulerClient]]:
    """Give a function that returns a client of a bus, of :func:`connected`."""
    with contextlib.ExitStack() as stack:
        yield lambda *bus, **how: stack.enter_context(connected(*bus, **how))


@contextlib.contextmanager
def connected(
    bus: str, topic: str, timeout: float = 30, durable: bool = False
) -> Iterator[SchedulerClient]:
    """Give a client of a bus, which has to be there at the end as well."""
    conf = new_conf()
    # Registers the options of the driver.
    used = transport.for_client(conf, bus)
    for name in clouds.DURABLE if durable else ():
        conf.set_override(name, True, 'oslo_messaging_rabbit')
    try:
        yield SchedulerClient(conf, used, topic=topic, timeout=timeout)
    finally:
        clouds.clean([used])
