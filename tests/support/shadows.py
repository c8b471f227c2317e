"""A shadow beside a scheduler in charge, in a cloud of rows and providers.

The cells' rows are written as the compute service writes them.
"""

from __future__ import annotations

import collections
import datetime
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
        # Rows of nodes without, and what is used of them, by host.
        self._rows: dict[str, dict[str, int]] = {}
        self._used: dict[str, collections.Counter[str]] = {}

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
        self._rows[name] = row
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

    def ask(
        self,
        uuids: Any = (),
        request_id: str = '',
        spec: Any = None,
        **fields: Any,
    ) -> list[str]:
        """Ask for hosts; return these, none where that was refused.

        :param spec: RequestSpec; None: one with some fields
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
        except oslo_messaging.RemoteError:
            for each in uuids:
                self.bury(each)
            return []
        return [first for first, *_ in hosts_of(answer)]

    def build(self, instance: str, host: str, flavor: Any) -> None:
        """Write what a compute service does of an instance on its host.

        :param flavor: with vcpus, memory_mb and root_gb
        """
        used = self._used.setdefault(host, collections.Counter())
        used.update(
            {
                'vcpus_used': flavor['vcpus'],
                'memory_mb_used': flavor['memory_mb'],
                'local_gb_used': flavor['root_gb'],
                'free_ram_mb': -flavor['memory_mb'],
                'free_disk_gb': -flavor['root_gb'],
            }
        )
        row = self._rows[host]
        values = {name: row[name] + used[name] for name in used}
        cell = self.cloud.cells[0]
        self.cloud.add_instance(host, uuid=instance)
        self.cloud.update(cell, 'compute_nodes', {'host': host}, **values)

    def bury(self, instance: str, message: str = REFUSED) -> None:
        """Write what the conductor does of an instance that got no host."""
        self.cloud.insert(
            self.cell0, 'instances', uuid=instance, deleted=0,
            vm_state='error', updated_at=utc_now(),
        )  # fmt: skip
        self.cloud.insert(
            self.cell0, 'instance_faults', instance_uuid=instance, code=500,
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

    def close(self) -> None:
        """Stop both."""
        for daemon in self._running:
            daemon.stop()
        self._caller.transport.cleanup()
