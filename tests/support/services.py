"""Daemons inside the test's own process, and clients of any daemon."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler_service import conf as options
from scheduler_service.bus import options as bus_options
from scheduler_service.cmd import adapters
from scheduler_service.cmd.daemon import Daemon
from scheduler_service.rpc import transport
from scheduler_service.rpc.client import SchedulerClient
from scheduler_service.store.connection import Store
from tests.support import clouds
from tests.support.documents import CONTEXT, SMALL

import oslo_messaging  # isort: skip

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

    def stop(self) -> None:
        """Stop the listeners, the daemon and the client's transport."""
        for listener in self.listeners:
            listener.stop()
            listener.wait()
        for used in self.buses:
            used.cleanup()
        self.daemon.stop()
        self.client.transport.cleanup()


class _AnswerEndpoint:
    """Takes the answers that are cast to the topic of a caller."""

    def __init__(self, found: queue.Queue[dict[str, Any]]) -> None:
        self._found = found

    def scheduler_answer(self, ctxt: Any, **answer: Any) -> None:
        self._found.put(answer)


@contextlib.contextmanager
def connected(
    url: str, topic: str, timeout: float = 30, durable: bool = False
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
    service.daemon.reconfigure(conf)()
    return conf
