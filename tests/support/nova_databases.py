"""The compute service's own databases, made by its own commands.

Rows are written as the service writes them: with its times, and deleted by
its marks.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import pathlib
import subprocess
import tempfile
import uuid
from typing import IO, Any

import sqlalchemy as sa

from tests.support import interop
from tests.support.databases import copy_of, new_database

_API = (
    'aggregate_hosts',
    'aggregate_metadata',
    'aggregates',
    'host_mappings',
    'cell_mappings',
    'flavors',
)
_CELL = (
    'compute_nodes',
    'services',
    'instance_faults',
    'instance_system_metadata',
    'instances',
)
# Programs that write what a database has, and that make the same of it.
_DUMP = {'postgresql': ['pg_dump', '--no-owner'], 'mysql': ['mariadb-dump']}
_LOAD = {
    'postgresql': ['psql', '--quiet', '--set=ON_ERROR_STOP=1'],
    'mysql': ['mariadb'],
}
_CELL0 = '00000000-0000-0000-0000-000000000000'
# The smallest row of a node that the service itself would write.
_NODE = {
    'vcpus': 8,
    'memory_mb': 16384,
    'local_gb': 100,
    'vcpus_used': 0,
    'memory_mb_used': 512,
    'local_gb_used': 0,
    'free_ram_mb': 15872,
    'free_disk_gb': 100,
    'hypervisor_type': 'QEMU',
    'hypervisor_version': 8002000,
    'host_ip': '192.0.2.1',
    'cpu_info': '{"vendor": "Intel", "features": ["aes"]}',
    'supported_instances': '[["x86_64", "kvm", "hvm"]]',
    'stats': '{"failed_builds": "2", "io_workload": "1"}',
    'metrics': '[]',
    'deleted': 0,
}


def utc_now() -> datetime.datetime:
    """Return the time as the service writes it: in whole seconds."""
    now = datetime.datetime.now(datetime.UTC)
    return now.replace(tzinfo=None, microsecond=0)


class NovaDatabases:
    """An API database and the databases of two cells.

    :param base: URL of a server of PostgreSQL or MariaDB
    """

    def __init__(self, base: str) -> None:
        self.base = base
        api, cell = _templates(base)
        self.api = copy_of(api)
        self.cells = [copy_of(cell), copy_of(cell)]
        self._engines = {
            url: sa.create_engine(url) for url in (self.api, *self.cells)
        }
        self._tables = {
            url: _reflected(engine, _API if url == self.api else _CELL)
            for url, engine in self._engines.items()
        }

    def close(self) -> None:
        """Close the connections."""
        for engine in self._engines.values():
            engine.dispose()

    def reset(self) -> None:
        """Delete everything, and map cell0 and both cells."""
        for url, names in (
            (self.api, _API),
            *((cell, _CELL) for cell in self.cells),
        ):
            with self._engines[url].begin() as conn:
                for name in names:
                    conn.execute(sa.delete(self._tables[url][name]))
        self.add_cell(0, 'nowhere://', _CELL0)
        for number, url in enumerate(self.cells, 1):
            self.add_cell(number, url)

    def add_cell(self, number: int, url: str, name: str = '') -> str:
        """Map a cell; return its uuid."""
        made = name or cell_uuid(number)
        self.insert(
            self.api,
            'cell_mappings',
            id=number + 1,
            uuid=made,
            name=f'cell{number}',
            database_connection=url,
            transport_url='none://',
            disabled=False,
        )
        return made

    def insert(self, url: str, table: str, **row: Any) -> None:
        """Insert a row, stamped as the service does it."""
        self.insert_many(url, table, [row])

    def insert_many(
        self, url: str, table: str, rows: list[dict[str, Any]]
    ) -> None:
        """Insert rows that have the same columns, stamped alike."""
        made = self._tables[url][table]
        stamped = [{'created_at': utc_now(), **row} for row in rows]
        with self._engines[url].begin() as conn:
            conn.execute(sa.insert(made), stamped)

    def update(self, url: str, table: str, where: Any, **values: Any) -> None:
        """Update the rows whose columns are as *where* says.

        Of rows that are marked as deleted, the time of the last change stays.
        """
        made = self._tables[url][table]
        if 'deleted' not in values:
            values.setdefault('updated_at', utc_now())
        condition = sa.and_(
            *(made.c[key] == value for key, value in where.items())
        )
        with self._engines[url].begin() as conn:
            conn.execute(sa.update(made).where(condition).values(**values))

    def add_host(self, name: str, cell: int = 1, **node: Any) -> str:
        """Add a host with its service, node and mapping; return its uuid."""
        made = node.pop('uuid', '') or str(uuid.uuid4())
        self.add_hosts([{'uuid': made, 'host': name, **node}], cell)
        return made

    def add_hosts(self, nodes: list[dict[str, Any]], cell: int = 1) -> None:
        """Add hosts with their services, nodes and mappings.

        :param nodes: each with its uuid and host, and the same other columns
        """
        url = self.cells[cell - 1]
        now = utc_now()
        service = {
            'binary': 'nova-compute', 'topic': 'compute', 'report_count': 1,
            'disabled': False, 'forced_down': False, 'version': 72,
            'deleted': 0, 'last_seen_up': now,
        }  # fmt: skip
        self.insert_many(
            url,
            'services',
            [
                {**service, 'uuid': str(uuid.uuid4()), 'host': node['host']}
                for node in nodes
            ],
        )
        stamped = {**_NODE, 'updated_at': now}
        self.insert_many(
            url,
            'compute_nodes',
            [
                {**stamped, 'hypervisor_hostname': node['host'], **node}
                for node in nodes
            ],
        )
        self.insert_many(
            self.api,
            'host_mappings',
            [{'host': node['host'], 'cell_id': cell + 1} for node in nodes],
        )

    def add_instance(self, host: str | None, cell: int = 1, **row: Any) -> str:
        """Add an instance; return its uuid."""
        made = row.pop('uuid', '') or str(uuid.uuid4())
        values = {
            'node': host,
            'project_id': 'p1',
            'image_ref': 'image-1',
            'deleted': 0,
            'vm_state': 'active',
            'updated_at': utc_now(),
            **row,
        }
        url = self.cells[cell - 1]
        self.insert(url, 'instances', uuid=made, host=host, **values)
        return made

    def add_aggregate(
        self, number: int, name: str, hosts: Any, **metadata: str
    ) -> str:
        """Add an aggregate with hosts and metadata; return its uuid."""
        made = str(uuid.uuid4())
        self.insert(self.api, 'aggregates', id=number, uuid=made, name=name)
        for host in hosts:
            self.insert(
                self.api, 'aggregate_hosts', aggregate_id=number, host=host
            )
        for key, value in metadata.items():
            self.insert(
                self.api,
                'aggregate_metadata',
                aggregate_id=number,
                key=key,
                value=value,
            )
        return made

    def delete(self, url: str, table: str, **where: Any) -> None:
        """Delete rows for good."""
        made = self._tables[url][table]
        condition = sa.and_(
            *(made.c[key] == value for key, value in where.items())
        )
        with self._engines[url].begin() as conn:
            conn.execute(sa.delete(made).where(condition))

    def run(self, url: str, statement: str) -> None:
        """Run a statement."""
        with self._engines[url].begin() as conn:
            conn.exec_driver_sql(statement)


@functools.cache
def _templates(base: str) -> tuple[str, str]:
    """Make an API database and one of a cell that others are copied from.

    What the service's own commands make is kept between runs: they take long.
    """
    folder = interop.openstack()
    api, cell = new_database(base), new_database(base)
    kind = sa.make_url(base).get_backend_name()
    with interop.kept(f'tables-{interop.NOVA}') as tables:
        tables.mkdir(exist_ok=True)
        kept = {
            api: tables / f'{kind}-api.sql',
            cell: tables / f'{kind}-cell.sql',
        }
        if all(path.exists() for path in kept.values()):
            for url, path in kept.items():
                _run_on(url, _LOAD[kind], stdin=path.open())
            return api, cell
        _sync(folder, api, cell, 'api_db', 'sync')
        _sync(folder, api, cell, 'db', 'sync', '--local_cell')
        for url, path in kept.items():
            made = path.with_suffix('.new')
            _run_on(url, _DUMP[kind], stdout=made.open('w'))
            made.rename(path)
    return api, cell


def _run_on(url: str, command: list[str], **files: IO[str]) -> None:
    """Run a program of a server on a database; its files are closed."""
    parts = sa.make_url(url)
    if url.startswith('postgresql'):
        place = [parts.set(drivername='postgresql').render_as_string(False)]
    else:
        assert parts.host
        assert parts.database
        place = [
            f'--host={parts.host}', f'--port={parts.port}',
            f'--user={parts.username}', f'--password={parts.password or ""}',
            parts.database,
        ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        for file in files.values():
            stack.enter_context(file)
        subprocess.run(
            [*command, *place], check=True, stderr=subprocess.PIPE,
            **{'stdout': subprocess.DEVNULL, **files},
        )  # fmt: skip


def _sync(folder: pathlib.Path, api: str, cell: str, *command: str) -> None:
    """Make tables by a command of the service."""
    with tempfile.TemporaryDirectory() as state:
        path = pathlib.Path(state) / 'nova.conf'
        path.write_text(
            f'[DEFAULT]\nstate_path = {state}\n'
            f'[api_database]\nconnection = {api}\n'
            f'[database]\nconnection = {cell}\n'
        )
        subprocess.run(
            [folder / 'bin/nova-manage', '--config-file', path, *command],
            check=True, capture_output=True, timeout=600,
        )  # fmt: skip


def cell_uuid(number: int) -> str:
    """Return the uuid of a cell."""
    return f'cccccccc-0000-4000-8000-{number:012}'


def _reflected(engine: Any, names: Any) -> dict[str, Any]:
    found = sa.MetaData()
    found.reflect(engine, only=names)
    return dict(found.tables)
