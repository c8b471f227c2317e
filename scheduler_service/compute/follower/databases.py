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
from scheduler_service.store.connection import in_chunks
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
    """Return the driver's arguments for time limits and reading only."""
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
COMPUTE = 'nova-compute'
_CHUNK = 500
_STAMPS = {
    'created_at': sa.DateTime,
    'updated_at': sa.DateTime,
}


def _table(named: str, /, **columns: Any) -> Any:
    return sa.table(
        named, *(sa.column(key, kind) for key, kind in columns.items())
    )


_TEXT, _INT = sa.Text, sa.Integer
_CELLS = _table(
    'cell_mappings',
    id=_INT,
    uuid=_TEXT,
    name=_TEXT,
    database_connection=_TEXT,
    disabled=sa.Boolean,
)
_HOST_MAPPINGS = _table(
    'host_mappings', id=_INT, host=_TEXT, cell_id=_INT, **_STAMPS
)
_FLAVORS = _table('flavors', id=_INT, flavorid=_TEXT, **_STAMPS)
_AGGREGATES = _table('aggregates', id=_INT, uuid=_TEXT, name=_TEXT, **_STAMPS)
_MEMBERS = _table(
    'aggregate_hosts', id=_INT, host=_TEXT, aggregate_id=_INT, **_STAMPS
)
_METADATA = _table(
    'aggregate_metadata',
    id=_INT,
    key=_TEXT,
    value=_TEXT,
    aggregate_id=_INT,
    **_STAMPS,
)
_NODES = _table(
    'compute_nodes',
    id=_INT,
    deleted=_INT,
    deleted_at=sa.DateTime,
    uuid=_TEXT,
    host=_TEXT,
    hypervisor_hostname=_TEXT,
    vcpus=_INT,
    memory_mb=_INT,
    local_gb=_INT,
    vcpus_used=_INT,
    memory_mb_used=_INT,
    local_gb_used=_INT,
    free_disk_gb=_INT,
    disk_available_least=_INT,
    hypervisor_type=_TEXT,
    hypervisor_version=_INT,
    host_ip=sa.types.NullType,
    cpu_info=_TEXT,
    supported_instances=_TEXT,
    stats=_TEXT,
    metrics=_TEXT,
    pci_stats=_TEXT,
    numa_topology=_TEXT,
    cpu_allocation_ratio=sa.Float,
    ram_allocation_ratio=sa.Float,
    disk_allocation_ratio=sa.Float,
    **_STAMPS,
)
# Columns of which one differs after any change; the service host first.
_MOVING = (
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
_NODE_TIMES = ('created_at', 'deleted_at')
_SERVICES = _table(
    'services',
    id=_INT,
    host=_TEXT,
    binary=_TEXT,
    deleted=_INT,
    disabled=sa.Boolean,
    disabled_reason=_TEXT,
    forced_down=sa.Boolean,
    last_seen_up=sa.DateTime,
    created_at=sa.DateTime,
)
_IS_COMPUTE = _SERVICES.c.binary == COMPUTE, _SERVICES.c.deleted == 0
_INSTANCES = _table(
    'instances',
    uuid=_TEXT,
    host=_TEXT,
    node=_TEXT,
    deleted=_INT,
    project_id=_TEXT,
    image_ref=_TEXT,
    availability_zone=_TEXT,
    task_state=_TEXT,
    vm_state=_TEXT,
    instance_type_id=_INT,
    **_STAMPS,
)


class Cell(NamedTuple):
    """A cell mapping.

    :ivar url: of the cell's database; may be a template
    """

    id: int
    uuid: str
    name: str
    url: str


class Fingerprint(NamedTuple):
    """Differs after nearly every change of a table.

    :ivar newest: the latest time of a change; None: no row has any
    """

    rows: int
    highest_id: int
    newest: datetime.datetime | None


def cells(conn: Connection) -> list[Cell]:
    """Return the cells that can have hosts: not cell0, and not disabled."""
    rows = conn.execute(sa.select(_CELLS).order_by(_CELLS.c.id))
    return [
        Cell(row.id, row.uuid, row.name or row.uuid, row.database_connection)
        for row in rows
        if row.uuid != CELL0 and not row.disabled
    ]


def fingerprints(conn: Connection) -> dict[str, Fingerprint]:
    """Return the fingerprints of the API database's tables, by name."""
    return {
        table.name: _fingerprint(conn, table)
        for table in (
            _HOST_MAPPINGS,
            _FLAVORS,
            _AGGREGATES,
            _MEMBERS,
            _METADATA,
        )
    }


def _fingerprint(conn: Connection, table: Any) -> Fingerprint:
    stamp = sa.func.coalesce(table.c.updated_at, table.c.created_at)
    count, highest, newest = conn.execute(
        sa.select(
            sa.func.count(), sa.func.max(table.c.id), sa.func.max(stamp)
        ).select_from(table)
    ).one()
    return Fingerprint(count, highest or 0, _as_datetime(newest))


def _as_datetime(value: Any) -> datetime.datetime | None:
    """Return the time of an SQL function, which SQLite gives as text."""
    if isinstance(value, str):
        return datetime.datetime.fromisoformat(value)
    return None if value is None else value


def host_mappings(conn: Connection) -> dict[str, int]:
    """Return the cell id of each service host."""
    query = sa.select(_HOST_MAPPINGS.c.host, _HOST_MAPPINGS.c.cell_id)
    return dict(tuple(row) for row in conn.execute(query))


def flavor_ids(conn: Connection) -> dict[int, str]:
    """Return internal number -> public flavor id."""
    query = sa.select(_FLAVORS.c.id, _FLAVORS.c.flavorid)
    return dict(tuple(row) for row in conn.execute(query))


def aggregates(
    conn: Connection,
) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """Return the rows of aggregates, of their hosts and of their metadata."""
    return (
        conn.execute(sa.select(_AGGREGATES)).all(),
        conn.execute(sa.select(_MEMBERS)).all(),
        conn.execute(sa.select(_METADATA)).all(),
    )


def services_fingerprint(conn: Connection) -> Fingerprint:
    """Return what differs after a compute service is added or removed."""
    query = sa.select(sa.func.count(), sa.func.max(_SERVICES.c.id))
    count, highest = conn.execute(query.where(*_IS_COMPUTE)).one()
    return Fingerprint(count, highest or 0, None)


def services(
    conn: Connection,
    fresh: tuple[datetime.datetime, datetime.datetime] | None = None,
) -> dict[str, Row[Any]]:
    """Return the rows of the compute services, by host.

    :param fresh: leave out enabled services that reported between these
        times; None: leave out none
    """
    table = _SERVICES
    # A time costs more to read than the rest of a row.
    unseen = sa.case((table.c.last_seen_up.is_(None), table.c.created_at))
    needed = [column for column in table.c if column.name != 'created_at']
    needed.append(unseen.label('created_at'))
    query: sa.Select[Any] = sa.select(*needed).where(*_IS_COMPUTE)
    if fresh is not None:
        seen = sa.func.coalesce(table.c.last_seen_up, table.c.created_at)
        query = query.where(
            table.c.disabled.is_(True)
            | table.c.forced_down.is_(True)
            | seen.is_(None)
            | ~seen.between(*fresh)
        )
    return {row.host: row for row in conn.execute(query)}


def nodes(
    conn: Connection, hosts: Iterable[str] | None = None
) -> Iterator[Row[Any]]:
    """Yield the rows of compute nodes.

    :param hosts: only of these service hosts; None: of all
    """
    table = _NODES
    # Times cost as much to read as all other columns together.
    needed = [column for column in table.c if column.name not in _NODE_TIMES]
    query = sa.select(*needed).where(table.c.deleted == 0)
    for part in [None] if hosts is None else in_chunks(hosts, _CHUNK):
        if part is not None:
            yield from conn.execute(query.where(table.c.host.in_(part)))
        else:
            yield from conn.execute(query)


def newest_instance_change(conn: Connection) -> datetime.datetime | None:
    """Return the time of the last change of an instance."""
    newest = sa.func.max(_INSTANCES.c.updated_at)
    return _as_datetime(conn.execute(sa.select(newest)).scalar())


class NodeMarks(NamedTuple):
    """Differs after any change of a compute node, except for a change with
    the same time as the newest.
    """

    changed_at: datetime.datetime | None
    created_at: datetime.datetime | None
    deleted_at: datetime.datetime | None
    rows: int


def node_marks(conn: Connection) -> NodeMarks:
    """Return the marks of the compute nodes."""
    table = _NODES
    times = (table.c.updated_at, table.c.created_at, table.c.deleted_at)
    query = sa.select(
        *(sa.func.max(time_) for time_ in times), sa.func.count()
    )
    row = conn.execute(query).one()
    return NodeMarks(
        _as_datetime(row[0]),
        _as_datetime(row[1]),
        _as_datetime(row[2]),
        int(row[3]),
    )


def changed_nodes(
    conn: Connection, since: datetime.datetime
) -> dict[int, tuple[Any, ...]]:
    """Return the changing columns of nodes that changed since, by id.

    The first value is the service host.
    """
    table = _NODES
    columns = [table.c[name] for name in _MOVING]
    query = sa.select(table.c.id, *columns).where(
        (table.c.updated_at >= since)
        | (table.c.created_at >= since)
        | (table.c.deleted_at >= since)
    )
    return {row.id: tuple(row)[1:] for row in conn.execute(query)}


def moving(row: Row[Any]) -> tuple[Any, ...]:
    """Return the columns of :func:`changed_nodes` from a row of a node."""
    return tuple([getattr(row, name) for name in _MOVING])


def instances(
    conn: Connection, hosts: Iterable[str] | None = None
) -> Iterator[Row[Any]]:
    """Yield the rows of instances that are on a host and not deleted.

    :param hosts: only on these service hosts; None: on any
    """
    table = _INSTANCES
    query = sa.select(table).where(
        table.c.deleted == 0, table.c.host.is_not(None)
    )
    for part in [None] if hosts is None else in_chunks(hosts, _CHUNK):
        if part is not None:
            yield from conn.execute(query.where(table.c.host.in_(part)))
        else:
            yield from conn.execute(query)


def changed_instances(
    conn: Connection, since: datetime.datetime
) -> dict[str, Row[Any]]:
    """Return the rows of instances that changed since, also deleted ones.

    A deleted row keeps the time of its last change, a moment before, so
    *since* has to be earlier by that.
    """
    table = _INSTANCES
    query = sa.select(table).where(table.c.updated_at >= since)
    return {row.uuid: row for row in conn.execute(query)}
