"""Daemons inside the test's own process, and clients of any daemon."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import queue
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from scheduler_service import conf as options
from scheduler_service.bus import options as bus_options
from scheduler_service.cmd import adapters
from scheduler_service.cmd.daemon import Daemon
from scheduler_service.rpc import transport
from scheduler_service.rpc.client import SchedulerClient
from scheduler_service.store.claims import claim_queries
from scheduler_service.store.connection import Store
from tests.support import clouds
from tests.support.databases import ready_database
from tests.support.documents import CONTEXT, SMALL

import oslo_messaging  # isort: skip
from tests.support.waiting import LIMIT_S

# The buses that tests of RPC run on.
BUSES = ['inproc', pytest.param('rabbit', marks=pytest.mark.broker)]


def new_conf(**more: Any) -> Any:
    """Return options; *more* are ``group__name`` values."""
    conf = adapters.new_config()
    transport.prepare(conf)
    options.parse(conf, [], default_config_files=[], default_config_dirs=[])
    # Registers the options of notifications.
    transport.for_notifications(conf, 'inproc://')
    bus_options.register(conf)
    for name, value in more.items():
        group, _, option = name.rpartition('__')
        conf.set_override(option, value, group=group or None)
    return conf


def hosts_of(answer: dict[str, Any]) -> list[str]:
    """Return the host of every instance that an answer places."""
    return [one['selected']['host'] for one in answer['placements']]


@dataclasses.dataclass
class Service:
    """A daemon in this process, and a client of it."""

    daemon: Daemon
    client: SchedulerClient
    store: Store
    conf: Any
    url: str
    listeners: list[Any] = dataclasses.field(default_factory=list)
    buses: list[Any] = dataclasses.field(default_factory=list)

    def answers(self, topic: str) -> queue.Queue[dict[str, Any]]:
        """Listen on a topic; return the queue that its messages fill."""
        found: queue.Queue[dict[str, Any]] = queue.Queue()
        bus = transport.for_client(self.conf, self.url)
        target = oslo_messaging.Target(topic=topic, server='test')
        server = oslo_messaging.get_rpc_server(
            bus, target, [_AnswerEndpoint(found)]
        )
        server.start()
        self.listeners.append(server)
        self.buses.append(bus)
        return found

    def select_hosts(self, **request: Any) -> list[str]:
        """Place instances, of the flavor SMALL unless said; return hosts."""
        answer = self.client.select_destinations(
            CONTEXT, {'flavor': SMALL, **request}
        )
        return hosts_of(answer)

    def release_all(self) -> None:
        """Release every claim: all hosts are free again."""
        with self.store.reading() as conn:
            uuids = {row['uuid'] for row in claim_queries.listing(conn)}
        if uuids:
            self.client.release(CONTEXT, sorted(uuids))

    def stop(self) -> None:
        """Stop the listeners, the daemon and the client's transport."""
        # A listener that was idle notices its end seconds later.
        with ThreadPoolExecutor() as threads:
            list(threads.map(_end, self.listeners))
        for used in self.buses:
            used.cleanup()
        self.daemon.stop()
        self.client.transport.cleanup()


def _end(listener: Any) -> None:
    listener.stop()
    listener.wait()


class _AnswerEndpoint:
    """Takes the answers that are cast to the topic of a caller."""

    def __init__(self, found: queue.Queue[dict[str, Any]]) -> None:
        self._found = found

    def scheduler_answer(self, ctxt: Any, **answer: Any) -> None:
        self._found.put(answer)


def started(store: Store, url: str = '', **more: Any) -> Service:
    """Start a daemon on a store, and make a client of it.

    :param url: of the bus; without one it has a bus inside this process
    :param more: ``group__name`` values of options
    """
    url = url or f'inproc://{uuid.uuid4().hex}/'
    connection = store.engine.url.render_as_string(hide_password=False)
    conf = new_conf(database__connection=connection, **more)
    daemon = Daemon(conf, url)
    daemon.start()
    client = SchedulerClient(
        conf,
        transport.for_client(conf, url),
        topic=conf.scheduler.topic,
        timeout=LIMIT_S,
    )
    return Service(daemon, client, store, conf, url)


@contextlib.contextmanager
def shared(
    folder: pathlib.Path, url: str = '', inventory: Any = None, **more: Any
) -> Iterator[Service]:
    """Run a daemon for several tests, on hosts in a file in a folder."""
    store = Store.connect(ready_database(f'sqlite:///{folder}/', inventory))
    if url:
        more.setdefault('scheduler__topic', f't{uuid.uuid4().hex[:8]}')
    service = started(store, url, **more)
    try:
        yield service
    finally:
        service.stop()
        store.dispose()


@contextlib.contextmanager
def connected(
    url: str, topic: str, timeout: float = LIMIT_S, durable: bool = False
) -> Iterator[SchedulerClient]:
    """Give a client of a bus, which has to be there at the end as well.

    :param timeout: seconds to wait for an answer
    :param durable: queues are of the kind that outlives the broker
    """
    conf = new_conf()
    used = transport.for_client(conf, url)
    for name in clouds.DURABLE if durable else ():
        conf.set_override(name, True, 'oslo_messaging_rabbit')
    try:
        yield SchedulerClient(conf, used, topic=topic, timeout=timeout)
    finally:
        clouds.clean([used])


def reconfigure(service: Service, **more: Any) -> Any:
    """Have a daemon take the defaults, but for its database and *more*.

    :raises ConfigurationError: it takes nothing of them
    """
    url = service.conf.database.connection
    conf = new_conf(database__connection=url, **more)
    service.daemon.reconfigure(conf)
    return conf
