"""Read-only access to the compute service's databases.

Each session is read-only for the server too, so that a statement that writes
fails whatever the user's rights are. A :class:`ReadOnlyDatabase` may be used
by any thread.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row, make_url

from scheduler_service import errors
from scheduler_service.store.rows import select_in
from scheduler_service.store.sessions import APPLICATION

# The compute service's drivers -> ours.
_DRIVERS = {
    'mysql': 'mysql+pymysql',
    'mysql+mysqldb': 'mysql+pymysql',
    'mariadb': 'mysql+pymysql',
    'postgresql': 'postgresql+psycopg',
    'postgresql+psycopg2': 'postgresql+psycopg',
}


class ReadOnlyDatabase:
    """One of the compute service's databases.

    :param url: as the compute service writes it
    :param connect_timeout: seconds
    :param statement_timeout: seconds
    :raises ConfigurationError: the URL cannot be used
    """

    def __init__(
        self, url: str, connect_timeout: float, statement_timeout: float
    ) -> None:
        try:
            parsed = make_url(url)
            parsed = parsed.set(
                drivername=_DRIVERS.get(parsed.drivername, parsed.drivername)
            )
            kind = parsed.get_backend_name()
            self._engine = sa.create_engine(
                parsed,
                connect_args=_arguments(
                    kind, connect_timeout, statement_timeout
                ),
                pool_pre_ping=True,
                # Servers close idle connections after a while.
                pool_recycle=300,
                **({} if kind == 'sqlite' else {'pool_size': 2}),
            )
        except (sa.exc.ArgumentError, ImportError, ValueError) as fault:
            # Without the URL, which may hold a password.
            raise errors.ConfigurationError(
                f'A database URL of the compute service cannot be used: '
                f'{type(fault).__name__}'
            ) from None
        if kind == 'sqlite':
            sa.event.listen(self._engine, 'connect', _forbid_writing)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection in a transaction that can only read.

        :raises sqlalchemy.exc.SQLAlchemyError: the database does not answer
        """
        with self._engine.connect() as conn, conn.begin():
            yield conn

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


def filled_in(template: str, base: str) -> str:
    """Return the URL of a cell's database from its mapping.

    :param template: the mapping's URL, which may name parts of *base*:
        scheme, username, password, hostname, port, path, query, fragment;
        and username1, hostname1 and so on where *base* lists several servers
    :raises ConfigurationError: it names a part that *base* does not have
    """
    if '{' not in template:
        return template
    try:
        return template.format(**_parts(base))
    except (KeyError, IndexError, ValueError) as fault:
        raise errors.ConfigurationError(
            f'A cell mapping names a part of the database URL that '
            f'[compute] cell_database does not have: {fault}'
        ) from None


def _parts(url: str) -> dict[str, Any]:
    split = urlsplit(url)
    servers = split.netloc.split(',')
    parts: dict[str, Any] = {
        'scheme': split.scheme,
        'path': split.path.lstrip('/'),
        'query': split.query,
        'fragment': split.fragment,
    }
    for number, server in enumerate(servers):
        suffix = str(number + 1) if len(servers) > 1 else ''
        address = urlsplit(f'//{server}')
        for name in ('username', 'password', 'hostname', 'port'):
            value = getattr(address, name)
            if value is not None or not suffix:
                parts[name + suffix] = value
            if number == 0:
                parts.setdefault(name, value)
    return parts


def _arguments(
    kind: str, connect_timeout: float, statement_timeout: float
) -> dict[str, Any]:
    limit_ms = int(statement_timeout * 1000)
    if kind == 'postgresql':
        return {
            'connect_timeout': int(connect_timeout),
            'application_name': APPLICATION,
            'options': '-c default_transaction_read_only=on '
            f'-c statement_timeout={limit_ms}',
            # The limit where the server no longer answers at all.
            'tcp_user_timeout': limit_ms,
        }
    if kind == 'mysql':
        return {
            'connect_timeout': int(connect_timeout),
            'read_timeout': int(statement_timeout),
            'write_timeout': int(statement_timeout),
            'init_command': 'SET SESSION TRANSACTION READ ONLY',
        }
    return {}


def _forbid_writing(dbapi_conn: Any, record: Any) -> None:
    dbapi_conn.execute('PRAGMA query_only = ON')


CELL0 = '00000000-0000-0000-0000-000000000000'


def _table(name: str, columns: str, *times: str) -> Any:
    """Return a table; only its times need a type, for SQLite."""
    return sa.table(
        name,
        *(sa.column(key) for key in columns.split()),
        *(sa.column(key, sa.DateTime) for key in times),
    )


_STAMPS = 'created_at', 'updated_at'
_CELLS = _table('cell_mappings', 'id uuid name database_connection disabled')
_HOST_MAPPINGS = _table('host_mappings', 'id host cell_id', *_STAMPS)
_FLAVORS = _table('flavors', 'id flavorid', *_STAMPS)
_AGGREGATES = _table('aggregates', 'id uuid name', *_STAMPS)
_MEMBERS = _table('aggregate_hosts', 'id host aggregate_id', *_STAMPS)
_METADATA = _table('aggregate_metadata', 'id key value aggregate_id', *_STAMPS)
_NODES = _table(
    'compute_nodes',
    'id deleted uuid host hypervisor_hostname vcpus memory_mb local_gb '
    'vcpus_used memory_mb_used local_gb_used free_disk_gb '
    'disk_available_least hypervisor_type hypervisor_version host_ip '
    'cpu_info supported_instances stats metrics pci_stats numa_topology '
    'cpu_allocation_ratio ram_allocation_ratio disk_allocation_ratio',
    'deleted_at',
    *_STAMPS,
).c
# Columns of which one differs after any change; the service host first.
_MOVING = [
    _NODES[name]
    for name in (
        'host',
        'uuid',
        'deleted',
        'updated_at',
        'vcpus_used',
        'memory_mb_used',
        'local_gb_used',
        'disk_available_least',
        'free_disk_gb',
        'stats',
    )
]
_SERVICES = _table(
    'services',
    'host binary deleted disabled disabled_reason forced_down',
    'last_seen_up',
    'created_at',
).c
_IS_COMPUTE = _SERVICES.binary == 'nova-compute', _SERVICES.deleted == 0
_INSTANCES = _table(
    'instances',
    'uuid host node deleted project_id image_ref availability_zone '
    'task_state vm_state instance_type_id',
    *_STAMPS,
).c

_SYSTEM_METADATA = _table(
    'instance_system_metadata', 'instance_uuid key value deleted'
).c
_FAULTS = _table(
    'instance_faults', 'id instance_uuid message deleted', 'created_at'
).c


class Cell(NamedTuple):
    """A cell mapping.

    :ivar url: of the cell's database; may be a template
    """

    id: int
    uuid: str
    name: str
    url: str


def cells(conn: Connection, with_cell0: bool = False) -> list[Cell]:
    """Return the cells that can have hosts: not cell0, and not disabled.

    :param with_cell0: also the one of instances without a host
    """
    rows = conn.execute(sa.select(_CELLS).order_by(_CELLS.c.id))
    return [
        Cell(row.id, row.uuid, row.name or row.uuid, row.database_connection)
        for row in rows
        if not row.disabled and (with_cell0 or row.uuid != CELL0)
    ]


def fingerprints(conn: Connection) -> list[Row[Any]]:
    """Return for each table of the API database what differs after a change.

    Nearly every change shows; ``newest`` is the latest time of one, None where
    no row has any.
    """
    made = []
    for table in _HOST_MAPPINGS, _FLAVORS, _AGGREGATES, _MEMBERS, _METADATA:
        changed = sa.func.coalesce(table.c.updated_at, table.c.created_at)
        query = sa.select(
            sa.func.count(table.c.id),
            sa.func.max(table.c.id),
            sa.func.max(changed).label('newest'),
        )
        made.append(conn.execute(query).one())
    return made


def host_mappings(conn: Connection) -> dict[str, int]:
    """Return the cell id of each service host."""
    query = sa.select(_HOST_MAPPINGS.c.host, _HOST_MAPPINGS.c.cell_id)
    return dict(tuple(row) for row in conn.execute(query))


def flavor_ids(conn: Connection) -> dict[int, str]:
    """Return internal number -> public flavor id."""
    query = sa.select(_FLAVORS.c.id, _FLAVORS.c.flavorid)
    return dict(tuple(row) for row in conn.execute(query))


def aggregates(conn: Connection) -> list[Sequence[Any]]:
    """Return the rows of aggregates, of their hosts and of their metadata."""
    return [
        conn.execute(sa.select(table)).all()
        for table in (_AGGREGATES, _MEMBERS, _METADATA)
    ]


class ServiceState(NamedTuple):
    """The state of the compute service on a host.

    :ivar up: whether it reported in time and is not forced down
    """

    disabled: bool = False
    reason: str | None = None
    up: bool = True


def unusual_services(
    conn: Connection, now: datetime.datetime, down_time: float
) -> dict[str, ServiceState]:
    """Return the state of compute services that are disabled or down, by host.

    :param now: in UTC, without a time zone, as the rows have it
    :param down_time: seconds without a report after which a service is down
    """
    allowed = datetime.timedelta(seconds=down_time)
    seen = sa.func.coalesce(_SERVICES.last_seen_up, _SERVICES.created_at)
    recent = seen.between(now - allowed, now + allowed)
    query = sa.select(
        _SERVICES.host,
        _SERVICES.disabled,
        _SERVICES.disabled_reason,
        _SERVICES.forced_down,
        recent.label('recent'),
    ).where(
        *_IS_COMPUTE,
        _SERVICES.disabled.is_(True)
        | _SERVICES.forced_down.is_(True)
        | seen.is_(None)
        | ~recent,
    )
    return {
        row.host: ServiceState(
            bool(row.disabled),
            row.disabled_reason if row.disabled else None,
            bool(row.recent and not row.forced_down),
        )
        for row in conn.execute(query)
    }


def nodes(
    conn: Connection, hosts: Iterable[str] | None = None
) -> Iterable[Row[Any]]:
    """Return the rows of compute nodes that have a service.

    :param hosts: only of these service hosts; None: of all
    """
    # Times cost as much to read as all other columns together.
    needed = [
        column
        for column in _NODES
        if column.name not in ('created_at', 'deleted_at')
    ]
    has_service = sa.exists().where(
        _SERVICES.host == _NODES.host, *_IS_COMPUTE
    )
    query = sa.select(*needed).where(_NODES.deleted == 0, has_service)
    return _on(conn, query, _NODES.host, hosts)


def instances(
    conn: Connection, hosts: Iterable[str] | None = None
) -> Iterable[Row[Any]]:
    """Return the rows of instances that are on a host and not deleted.

    :param hosts: only on these service hosts; None: on any
    """
    query = sa.select(*_INSTANCES).where(
        _INSTANCES.deleted == 0, _INSTANCES.host.is_not(None)
    )
    return _on(conn, query, _INSTANCES.host, hosts)


def image_metadata(
    conn: Connection, hosts: Iterable[str] | None = None
) -> dict[str, dict[str, str]]:
    """Return what is kept of the images of the same instances, by uuid."""
    kept = _SYSTEM_METADATA
    query = sa.select(kept.instance_uuid, kept.key, kept.value).where(
        kept.instance_uuid == _INSTANCES.uuid,
        kept.deleted == 0,
        kept.key.startswith('image_', autoescape=True),
        _INSTANCES.deleted == 0,
        _INSTANCES.host.is_not(None),
    )
    found: dict[str, dict[str, str]] = {}
    for row in _on(conn, query, _INSTANCES.host, hosts):
        found.setdefault(row.instance_uuid, {})[row.key] = row.value
    return found


def _on(
    conn: Connection, query: Any, column: Any, hosts: Iterable[str] | None
) -> Iterable[Row[Any]]:
    if hosts is None:
        return conn.execute(query)
    return select_in(conn, query, column, hosts)


def newest_instance_change(conn: Connection) -> datetime.datetime | None:
    """Return the time of the last change of an instance."""
    return conn.execute(sa.select(sa.func.max(_INSTANCES.updated_at))).scalar()


def node_marks(conn: Connection) -> Any:
    """Return what differs after any change of a compute node.

    Only a change with the same time as the newest does not show. The first
    mark is the time of the newest change; None: there is none.
    """
    times = _NODES.updated_at, _NODES.created_at, _NODES.deleted_at
    query = sa.select(*map(sa.func.max, times), sa.func.count(_NODES.id))
    return conn.execute(query).one()


def changed_nodes(
    conn: Connection, since: datetime.datetime
) -> dict[int, tuple[Any, ...]]:
    """Return the changing columns of nodes that changed since, by id.

    The first value is the service host.
    """
    query = sa.select(_NODES.id, *_MOVING).where(
        (_NODES.updated_at >= since)
        | (_NODES.created_at >= since)
        | (_NODES.deleted_at >= since)
    )
    return {row.id: tuple(row)[1:] for row in conn.execute(query)}


def changed_instances(
    conn: Connection, since: datetime.datetime
) -> dict[str, Row[Any]]:
    """Return the rows of instances that changed since, also deleted ones.

    A deleted row keeps the time of its last change, a moment before, so
    *since* has to be earlier by that.
    """
    query = sa.select(*_INSTANCES).where(_INSTANCES.updated_at >= since)
    return {row.uuid: row for row in conn.execute(query)}


def faults(
    conn: Connection, uuids: Iterable[str], since: datetime.datetime
) -> list[Row[Any]]:
    """Return (instance, message, time) of faults, the oldest first."""
    columns = _FAULTS.instance_uuid, _FAULTS.message, _FAULTS.created_at
    query = sa.select(*columns).where(
        _FAULTS.deleted == 0, _FAULTS.created_at >= since
    )
    rows = query.order_by(_FAULTS.id)
    return select_in(conn, rows, _FAULTS.instance_uuid, uuids)


def new_instances(
    conn: Connection, since: datetime.datetime, until: datetime.datetime
) -> list[str]:
    """Return the instances whose rows were made in a time, without its end."""
    query = sa.select(_INSTANCES.uuid).where(
        _INSTANCES.created_at >= since, _INSTANCES.created_at < until
    )
    return list(conn.execute(query).scalars())
