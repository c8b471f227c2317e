"""Daemons as processes on real servers, for the scenarios of faults."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import pathlib
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from scheduler_service import conf as options
from scheduler_service import (
    errors,
    rpc,  # noqa: F401 - chooses the bus's backend
)
from scheduler_service.cmd import adapters
from scheduler_service.model import documents
from scheduler_service.rpc import transport
from scheduler_service.rpc.client import SchedulerClient
from scheduler_service.settings import EngineOptions
from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from scheduler_service.store.records import audit
from scheduler_service.store.writing import inventory_import
from tests.support.databases import migrated_database
from tests.support.processes import Forked
from tests.support.stores import DEFAULT_RATIOS

import oslo_messaging  # isort: skip
from tests.support.waiting import LIMIT_S

# As the shipped sample has it: queues that survive the broker's restart.
DURABLE = {
    'amqp_durable_queues': True,
    'rabbit_quorum_queue': True,
    'rabbit_transient_quorum_queue': True,
}


def clean(buses: list[Any]) -> None:
    """Close transports, and what they left of connections that broke.

    kombu lets go of a connection whose closing fails without closing its
    socket, which is then found whenever garbage is next collected.
    """
    for bus in buses:
        bus.cleanup()
    gc.collect()


@dataclasses.dataclass
class Cloud:
    """Daemons as processes on one topic and one store.

    :ivar bus_options: of [oslo_messaging_rabbit], of daemons and clients
    :ivar programs: folder of the program that is run; None: none, it is
        forked
    """

    store: Store
    bus: str
    topic: str
    config: pathlib.Path
    log: pathlib.Path
    bus_options: dict[str, Any]
    programs: pathlib.Path | None
    running: list[subprocess.Popen[bytes] | Forked] = dataclasses.field(
        default_factory=list
    )
    buses: list[Any] = dataclasses.field(default_factory=list)

    def start(self) -> None:
        """Start one more daemon, without waiting for it."""
        with self.log.open('ab') as log:
            self.running.append(
                subprocess.Popen(
                    [self.programs / 'scheduler-service',
                     '--config-file', self.config],
                    stdout=log, stderr=log,
                )
                if self.programs
                else Forked(self.config, log.fileno())
            )  # fmt: skip

    def signal(self, number: int) -> None:
        """Send a signal to every daemon."""
        for one in self.running:
            one.send_signal(number)

    def said(self, text: str) -> int:
        """Return how many lines the daemons said with a text."""
        return self.log.read_text(errors='replace').count(text)

    def wait_for(self, text: str, count: int) -> None:
        """Wait until the daemons have said a text *count* times."""
        deadline = time.monotonic() + LIMIT_S
        while self.said(text) < count:
            if time.monotonic() > deadline:
                raise AssertionError(self.log.read_text()[-3000:])
            time.sleep(0.05)

    def client(self, timeout: float = LIMIT_S) -> SchedulerClient:
        """Return a client of its own connection."""
        conf = self.conf()
        bus = transport.for_client(conf, self.bus)
        for name, value in self.bus_options.items():
            conf.set_override(name, value, 'oslo_messaging_rabbit')
        self.buses.append(bus)
        return SchedulerClient(conf, bus, self.topic, timeout=timeout)

    def conf(self) -> Any:
        """Return options of a client."""
        conf = adapters.new_config()
        transport.prepare(conf)
        options.parse(
            conf, [], default_config_files=[], default_config_dirs=[]
        )
        return conf

    def bring(self, document: Any) -> None:
        """Import a document."""
        parsed = documents.inventory(document)
        self.store.write(
            lambda writer: inventory_import.Importer(writer).run(parsed)
        )
        # Views that are older than this are refreshed before a decision.
        time.sleep(EngineOptions().snapshot_max_age + 0.1)

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

    def missing_reply(
        self, fault: Exception, claiming: Sequence[str], move: bool = False
    ) -> str:
        """Return the name under which a call without a reply is counted.

        Where the books have no claim, nothing is lost: a daemon acknowledges a
        refusal before it replies, and may be killed in between.

        :param claiming: instances that the call claims places for; empty: it
            claims none
        :param move: whether these are their second places
        """
        name = f'no answer: {type(fault).__name__}'
        if claiming and isinstance(fault, oslo_messaging.MessagingTimeout):
            held: Any = schema.instances.c.uuid
            if move:
                held = schema.moves.c.instance_uuid
            query = sa.select(held).where(held.in_(claiming)).limit(1)
            with (
                contextlib.suppress(errors.StoreUnavailable),
                self.store.reading() as conn,
            ):
                if conn.execute(query).first() is None:
                    return f'{name}, no claim'
        return name

    def books(self) -> list[str]:
        """Return what an audit finds."""
        with self.store.reading() as conn:
            found = audit.audit(conn, DEFAULT_RATIOS).findings
        return [f'{one.kind} {one.host} {one.text}' for one in found]


T = TypeVar('T', bound=Cloud)


def cloud(
    database: str, bus: str, daemons: int, extra: str = '', **how: Any
) -> contextlib.AbstractContextManager[Any]:
    """Run daemons on an empty database of a server, and on a topic.

    :param extra: as for :func:`running`, as are others
    """
    return running(migrated_database(database), bus, daemons, extra, **how)


@contextlib.contextmanager
def running(
    database: str,
    bus: str,
    daemons: int,
    extra: str = '',
    heartbeat_s: int = 60,
    programs: pathlib.Path | None = None,
    kind: type[T] = Cloud,
    way: str = '',
) -> Iterator[T]:
    """Run daemons on a database that has its tables, and on a topic.

    :param extra: lines of [scheduler], and more groups
    :param heartbeat_s: after how long a silent broker is taken for dead
    :param programs: as of :class:`Cloud`
    :param kind: of cloud
    :param way: the URL by which daemons reach the database; empty: the same
    """
    bus_options = {**DURABLE, 'heartbeat_timeout_threshold': heartbeat_s}
    store = Store.connect(database, max_pool_size=20)
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        topic = f't{uuid.uuid4().hex[:8]}'
        url = way or store.engine.url.render_as_string(hide_password=False)
        lines = [f'{name} = {value}' for name, value in bus_options.items()]
        (place / 'a.conf').write_text(
            f'[DEFAULT]\ntransport_url = {bus}\n'
            f'[database]\nconnection = {url}\n'
            f'[scheduler]\ntopic = {topic}\n{extra}'
            '[oslo_messaging_rabbit]\n' + '\n'.join(lines) + '\n'
        )
        (place / 'log').touch()
        made = kind(
            store,
            bus,
            topic,
            place / 'a.conf',
            place / 'log',
            bus_options,
            programs,
        )
        try:
            for _ in range(daemons):
                made.start()
            made.wait_for('Ready:', daemons)
            yield made
        finally:
            clean(made.buses)
            for one in made.running:
                one.kill()
                one.wait()
            store.dispose()
