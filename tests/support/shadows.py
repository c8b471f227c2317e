"""A shadow beside a scheduler in charge, in a cloud of rows and providers.

The cells' rows are written as the compute service writes them.
"""

from __future__ import annotations

import collections
import datetime
import json
import uuid
from typing import Any

from scheduler_service.cmd.daemon import Daemon
from scheduler_service.store.connection import Store
from scheduler_service.store.records import shadow
from tests.support import nova_wire, servers, shipped
from tests.support.compute import CONTEXT, ComputeCaller, hosts_of, new_topic
from tests.support.nova_databases import utc_now
from tests.support.placement_claims import ready
from tests.support.placement_service import daemon_options
from tests.support.waiting import wait_until

import oslo_messaging  # isort: skip

SINCE = datetime.timedelta(days=1)
REFUSED = 'No valid host was found. There are not enough hosts available.'
# Of a flavor: as its amounts are named there.
SIZES = 'vcpus', 'memory_mb', 'root_gb'
FILTERS = 'filter_scheduler__enabled_filters'


class Both:
    """A scheduler in charge, and a shadow beside it.

    :param topic: of the scheduler in charge
    """

    stock: Daemon
    shadow: Daemon
    cell0: str

    def __init__(
        self,
        cloud: Any,
        service: Any,
        make_store: Any,
        rabbitmq: Any,
        topic: str = '',
    ) -> None:
        self.cloud, self.service = cloud, service
        self._server = rabbitmq[0]
        self.url = servers.new_vhost(*rabbitmq)
        self._make_store = make_store
        self.topic = topic or new_topic()
        self._caller = ComputeCaller(self.url, self.topic)
        self._running: list[Daemon] = []
        self.hosts: list[str] = []
        # uuids of the providers, by host.
        self.providers: dict[str, str] = {}
        # Rows of nodes without, and what is used of them, by host.
        self._rows: dict[str, dict[str, int]] = {}
        self.used = collections.defaultdict[str, collections.Counter[str]](
            collections.Counter
        )

    def map_cell0(self) -> None:
        """Have the second cell's database be that of cell0."""
        cloud = self.cloud
        cloud.delete(cloud.api, 'cell_mappings', id=3)
        self.cell0 = cloud.cells[1]
        cloud.update(
            cloud.api, 'cell_mappings', {'id': 1},
            database_connection=self.cell0,
        )  # fmt: skip

    def add_host(
        self,
        vcpus: int = 8,
        memory_mb: int = 8192,
        disk_gb: int = 100,
        **node: Any,
    ) -> str:
        """Add a host with its provider; return its name."""
        name = f'h{uuid.uuid4().hex[:8]}'
        row = {
            'vcpus': vcpus, 'memory_mb': memory_mb, 'local_gb': disk_gb,
            'vcpus_used': 0, 'memory_mb_used': 0, 'local_gb_used': 0,
            'free_ram_mb': memory_mb, 'free_disk_gb': disk_gb,
        }  # fmt: skip
        made = self.cloud.add_host(name, **row, **node)
        self._rows[name], self.providers[name] = row, made
        self.service.add_provider(
            made, name, VCPU=vcpus, MEMORY_MB=memory_mb, DISK_GB=disk_gb
        )
        self.hosts.append(name)
        return name

    def start(self, stock: Any = None, **more: Any) -> None:
        """Start both; *more* are options of the shadow alone."""
        self.stock = self._start(compute__enabled=True, **(stock or {}))
        ready(self.stock, *self.hosts)
        self.start_shadow(**more)

    def start_shadow(self, **more: Any) -> None:
        """Start the shadow, and wait until it gets what is sent.

        :param more: options, or the ``store`` of one before
        """
        queues = servers.names_in(self._server, self.url, 'queues')
        self.shadow = self._start(compute__shadow=True, **more)
        wait_until(
            lambda: servers.names_in(self._server, self.url, 'queues') - queues
        )
        ready(self.shadow, *self.hosts)

    def _options(self, store: Store, **more: Any) -> Any:
        return daemon_options(
            self.service,
            database__connection=store.engine.url.render_as_string(
                hide_password=False
            ),
            scheduler__topic=new_topic(),
            compute__transport_url=self.url,
            compute__topic=self.topic,
            compute__api_database=self.cloud.api,
            compute__use_placement=True,
            # Nobody reports for the hosts.
            compute__service_down_time=1000.0,
            **{FILTERS: shipped.filters(), **more},
        )

    def _start(self, store: Store | None = None, **more: Any) -> Daemon:
        store = store or self._make_store('postgresql', own=True)
        conf = self._options(store, **more)
        daemon = Daemon(conf, f'inproc://{uuid.uuid4().hex}/')
        daemon.start()
        self._running.append(daemon)
        return daemon

    def reconfigure(self, **more: Any) -> None:
        """Have the shadow decide by other options."""
        conf = self._options(self.shadow.store, compute__shadow=True, **more)
        self.shadow.reconfigure(conf)

    def stop_shadow(self) -> None:
        """Stop the shadow in order."""
        self._running.remove(self.shadow)
        self.shadow.stop()

    def ask(self, *args: Any, **fields: Any) -> list[str]:
        """Ask for hosts; return these, none where that was refused."""
        return [first for first, *_ in self.ask_all(*args, **fields)]

    def ask_all(
        self,
        uuids: Any = (),
        request_id: str = '',
        spec: Any = None,
        refused: Any = None,
        **fields: Any,
    ) -> list[list[str]]:
        """Ask for hosts; return those of each instance, alternates last.

        :param spec: RequestSpec; None: one with some fields
        :param refused: called with each instance if so; None: :meth:`bury`
        """
        uuids = [*uuids] or [str(uuid.uuid4())]
        context = {
            **CONTEXT,
            'request_id': request_id or f'req-{uuid.uuid4()}',
        }
        call = self._caller._client.prepare(version='4.5').call
        try:
            answer = call(
                context, 'select_destinations', instance_uuids=uuids,
                spec_obj=spec or nova_wire.spec(**fields),
                return_objects=True, return_alternates=True,
            )  # fmt: skip
        except oslo_messaging.RemoteError as fault:
            if fault.exc_type != 'NoValidHost':
                raise
            for each in uuids:
                (refused or self.bury)(each)
            return []
        return hosts_of(answer)

    def count(
        self, host: str, flavor: Any, sign: int = 1, **stats: int
    ) -> None:
        """Write that a host has an instance more, as its compute service does.

        :param flavor: with vcpus, memory_mb and root_gb
        :param sign: -1: one less; 0: only other statistics
        :param stats: what to add to its statistics
        """
        vcpus, memory_mb, disk_gb = map(flavor.get, SIZES)
        taken = {
            'vcpus_used': vcpus, 'num_instances': 1,
            'memory_mb_used': memory_mb, 'free_ram_mb': -memory_mb,
            'local_gb_used': disk_gb, 'free_disk_gb': -disk_gb,
        }  # fmt: skip
        used = self.used[host]
        for name, amount in taken.items():
            used[name] += sign * amount
        used.update(stats)
        values = {
            name: total + used[name]
            for name, total in self._rows[host].items()
        }
        names = 'num_instances', 'io_workload', 'failed_builds'
        text = json.dumps({name: str(used[name]) for name in names})
        cell = self.cloud.cells[0]
        self.cloud.update(
            cell, 'compute_nodes', {'host': host}, **values, stats=text
        )

    def keep_alive(self) -> None:
        """Write that all compute services are alive."""
        self.cloud.update(
            self.cloud.cells[0], 'services', {'deleted': 0},
            last_seen_up=utc_now(),
        )  # fmt: skip

    def bury(self, instance: str, message: str = REFUSED) -> None:
        """Write what the conductor does of an instance that got no host."""
        self.cloud.insert(
            self.cell0, 'instances', uuid=instance, deleted=0,
            vm_state='error', updated_at=utc_now(),
        )  # fmt: skip
        self.blame(self.cell0, instance, message)

    def blame(self, cell: str, instance: str, message: str = REFUSED) -> None:
        """Write the fault of an instance."""
        self.cloud.insert(
            cell, 'instance_faults', instance_uuid=instance, code=500,
            message=message, deleted=0,
        )  # fmt: skip

    def read_until(self) -> int | None:
        """Return up to when the shadow has counted new instances."""
        with self.shadow.store.reading() as conn:
            return shadow.read_until(conn)

    def report(self) -> Any:
        """Return the report of the shadow."""
        with self.shadow.store.reading() as conn:
            return shadow.report(conn, SINCE)

    def verdicts(self) -> dict[tuple[str, str], int]:
        """Return (verdict, cause) -> number of requests."""
        return {
            (row['verdict'], row['cause']): row['requests']
            for row in self.report()['shadow']
        }

    def wait_for(self, number: int) -> dict[tuple[str, str], int]:
        """Wait until so many requests are counted; return the verdicts."""

        def counted() -> Any:
            found = self.verdicts()
            missed = found.get(('not received', ''), 0)
            return sum(found.values()) - missed >= number and found

        found: dict[tuple[str, str], int] = wait_until(counted)
        return found

    def reconnect(self) -> None:
        """Close the caller's connections; new ones are made when needed.

        py-amqp never closes the socket of one that the broker has closed
        while it was idle.
        """
        self._caller.transport.cleanup()
        self._caller = ComputeCaller(self.url, self.topic)

    def close(self) -> None:
        """Stop both."""
        for daemon in self._running:
            daemon.stop()
        self._caller.transport.cleanup()
