"""What a shadow needs over hours in which requests come all the time.

``python -m benchmarks.shadow_hour --minutes 60 --rate 20 --json`` starts a
private RabbitMQ, MariaDB and placement service with the compute service's own
tables, and a shadow as a process. Requests are published at a steady rate; who
is in charge of them is a part of this program: it takes the host with the most
free memory, makes the allocations, writes the rows, and deletes each instance
after a while. Printed are every few minutes the shadow's memory, the messages
that wait in its queue, the rows of its tables, and its report.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import pathlib
import queue
import tempfile
import threading
import time
import uuid
from typing import Any

import kombu
import sqlalchemy as sa

from benchmarks import common
from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from scheduler_service.store.records import shadow
from tests.support import processes, servers, shipped
from tests.support.compute import EXCHANGE, request_body
from tests.support.databases import migrated_database
from tests.support.nova_cloud import NovaCloud
from tests.support.nova_databases import NovaDatabases, utc_now
from tests.support.placement_service import PlacementService, placement_service
from tests.support.shadows import SINCE

TOPIC, HOSTS = 'scheduler', 50
AMOUNTS = {'VCPU': 2, 'MEMORY_MB': 2048, 'DISK_GB': 20}
CLASSIC = 'amqp_durable_queues = false\nrabbit_quorum_queue = false\n'
# For how long an instance lives, and how many threads place them.
LIFE_S = 60.0
THREADS = 4


class InCharge:
    """Places and deletes instances, as a whole compute service does."""

    def __init__(
        self, databases: NovaDatabases, service: PlacementService, bus: str
    ) -> None:
        self._databases, self._service = databases, service
        self._cell = databases.cells[0]
        self._lock = threading.Lock()
        self._used = collections.Counter[str]()
        self._hosts: dict[str, str] = {}
        self._due = queue.SimpleQueue[float | None]()
        self._live = collections.deque[tuple[float, str, str]]()
        conn = kombu.Connection(bus.replace('rabbit://', 'amqp://'))
        # Nobody consumes it.
        kombu.Queue(
            TOPIC, kombu.Exchange(EXCHANGE, 'topic', durable=False), TOPIC,
            durable=False, max_length=100,
        )(conn.default_channel).declare()  # fmt: skip
        self._producer = conn.Producer()
        for number in range(HOSTS):
            name = f'h{number}'
            made = databases.add_host(
                name, vcpus=256, memory_mb=262144, local_gb=4000, stats='{}'
            )
            service.add_provider(
                made, name, VCPU=256, MEMORY_MB=262144, DISK_GB=4000
            )
            self._hosts[name] = made

    def run(self, rate: float, until: float) -> None:
        """Place instances at a rate, until a monotonic time."""
        threads = [
            threading.Thread(target=self._place_all) for _ in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        at = time.monotonic()
        while at < until:
            self._due.put(at)
            at += 1 / rate
            time.sleep(max(0.0, at - time.monotonic()))
            if int(at) % 10 == 0:
                self._databases.update(
                    self._cell, 'services', {'deleted': 0},
                    last_seen_up=utc_now(),
                )  # fmt: skip
        for _ in threads:
            self._due.put(None)
        for thread in threads:
            thread.join()

    def _place_all(self) -> None:
        while self._due.get() is not None:
            self._place()
            with self._lock:
                old = self._live and self._live[0][0] < time.monotonic()
                gone = self._live.popleft() if old else None
            if gone is not None:
                self._delete(*gone[1:])

    def _place(self) -> None:
        instance = str(uuid.uuid4())
        with self._lock:
            self._producer.publish(
                request_body(instance, 'nobody'), exchange=EXCHANGE,
                routing_key=TOPIC, content_type='application/json',
                content_encoding='utf-8',
            )  # fmt: skip
            host = min(self._hosts, key=lambda name: self._used[name])
            self._used[host] += 1
        self._service.take(instance, self._hosts[host], **AMOUNTS)
        self._databases.add_instance(host, uuid=instance)
        self._report(host)
        with self._lock:
            self._live.append((time.monotonic() + LIFE_S, instance, host))

    def _delete(self, instance: str, host: str) -> None:
        with self._lock:
            self._used[host] -= 1
        self._databases.delete(self._cell, 'instances', uuid=instance)
        self._report(host)
        self._service.call('DELETE', f'/allocations/{instance}')

    def _report(self, host: str) -> None:
        self._databases.update(
            self._cell, 'compute_nodes', {'host': host},
            vcpus_used=2 * self._used[host],
        )  # fmt: skip


def measured(store: Store, pid: int, server: Any, bus: str) -> dict[str, Any]:
    """Return what the shadow needs now."""
    status = pathlib.Path(f'/proc/{pid}/status').read_text()
    (memory,) = [x for x in status.splitlines() if x.startswith('VmRSS')]
    tables = (
        schema.decisions, schema.instances, schema.allocations,
        schema.shadow_verdicts, schema.changes,
    )  # fmt: skip
    vhost = bus.rpartition('/')[2]
    waiting = servers.rabbitmqctl(
        server, 'list_queues', '-p', vhost, 'name', 'messages'
    )
    with store.reading() as conn:
        rows = {
            table.name: conn.execute(
                sa.select(sa.func.count()).select_from(table)
            ).scalar_one()
            for table in tables
        }
        report = shadow.report(conn, SINCE)['summary']
    return {
        'memory_mb': int(memory.split()[1]) // 1024,
        'queues': waiting.split(),
        'rows': rows,
        'report': report,
    }


def measure(minutes: float, rate: float) -> dict[str, Any]:
    """Return what is measured, by minute."""
    found: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        server, base = stack.enter_context(servers.rabbitmq())
        database = stack.enter_context(servers.mariadb())[1]
        service = stack.enter_context(placement_service(database))
        databases = NovaDatabases(database)
        stack.callback(databases.close)
        folder = pathlib.Path(
            stack.enter_context(tempfile.TemporaryDirectory())
        )
        databases.reset()
        bus = servers.new_vhost(server, base)
        cloud = NovaCloud(folder, databases, bus, service, 'http://-')
        in_charge = InCharge(databases, service, bus)
        url = migrated_database(database)
        store = Store.connect(url)
        stack.callback(store.dispose)
        conf = folder / 'scheduler_service.conf'
        text = shipped.of_cloud(cloud, url, CLASSIC)
        conf.write_text(text.replace('\nenabled = false', '\nshadow = true'))
        shadowing = processes.launch(conf)
        stack.callback(shadowing.remove)
        shadowing.wait_for('Ready')
        start = time.monotonic()
        until = start + 60 * minutes
        placing = threading.Thread(target=in_charge.run, args=(rate, until))
        placing.start()
        while placing.is_alive():
            minute = int((time.monotonic() - start) / 60)
            found[f'minute {minute}'] = now = measured(
                store, shadowing.popen.pid, server, bus
            )
            print(minute, now, flush=True)
            placing.join(60 * minutes / 20)
    return found


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--minutes', type=float, default=60.0)
    parser.add_argument('--rate', type=float, default=20.0)
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    common.show(measure(args.minutes, args.rate), args.json)


if __name__ == '__main__':
    main()
