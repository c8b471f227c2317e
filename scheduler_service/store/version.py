"""Whether this release can use the tables as they are.

Nothing here needs Alembic, which takes as long to import as a small snapshot
to load.
"""

from __future__ import annotations

from collections import defaultdict

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.store import schema

VERSIONS = 'alembic_version'
_COLUMNS = {
    # Its information schema hides the tables that the user may not read: they
    # would seem to be missing.
    'postgresql': 'SELECT c.relname, a.attname FROM pg_attribute AS a '
    'JOIN pg_class AS c ON c.oid = a.attrelid '
    "WHERE c.relkind IN ('r', 'p') AND a.attnum > 0 "
    'AND NOT a.attisdropped AND c.relnamespace IN (SELECT n.oid '
    'FROM pg_namespace AS n WHERE n.nspname = ANY(current_schemas(false)))',
    'mysql': 'SELECT table_name, column_name FROM information_schema.columns '
    'WHERE table_schema = DATABASE()',
    'sqlite': 'SELECT m.name, c.name FROM sqlite_master AS m '
    "JOIN pragma_table_info(m.name) AS c WHERE m.type = 'table'",
}
# Counter -> the column of numbers that were taken from it.
COUNTERS = {
    'revision': schema.changes.c.revision,
    'host_id': schema.hosts.c.id,
}
# The counter that holds the random id of the store.
STORE = 'store'
_SYNC = 'run "scheduler-manage db sync"'


def current(conn: Connection) -> str | None:
    """Return the version of the tables; None: there are no tables.

    :raises SchemaMismatch: there are tables and no version, or several
    """
    columns = _columns(conn)
    versions: list[str] = []
    if VERSIONS in columns:
        query = sa.text(f'SELECT version_num FROM {VERSIONS}')  # noqa: S608
        versions = sorted(conn.execute(query).scalars())
    if len(versions) == 1:
        return versions[0]
    if not versions and schema.metadata.tables.keys().isdisjoint(columns):
        return None
    listed = ', '.join(versions) or 'none'
    raise errors.SchemaMismatch(
        f'The tables should have one version in {VERSIONS}, and have '
        f'{listed}: restore the database from a backup, or drop all tables '
        f'and {_SYNC}'
    )


def store_id(conn: Connection) -> int | None:
    """Return the id of the store; None: it has none yet."""
    table = schema.counters
    query = sa.select(table.c.value).where(table.c.name == STORE)
    number: int | None = conn.execute(query).scalar()
    return number


def check(conn: Connection) -> str:
    """Check that this release can use the tables; return their version.

    That is the release's own version, or a newer version that was declared
    safe for this release when the tables were upgraded.

    :raises SchemaMismatch: it cannot
    :raises StoreUnavailable: there are no tables yet
    """
    version = check_version(conn)
    if version is None:
        raise errors.StoreUnavailable(
            f'The database has no tables yet: {_SYNC}'
        )
    faults = damage(conn)
    if faults:
        more = f' and {len(faults) - 1} more' if len(faults) > 1 else ''
        raise errors.SchemaMismatch(
            f'The tables are damaged: {faults[0]}{more}: see '
            '"scheduler-manage db check", and restore the database from a '
            'backup'
        )
    return version


def check_version(conn: Connection) -> str | None:
    """Check that this release can use tables of the version that they have.

    :return: the version; None: there are no tables
    :raises SchemaMismatch: it cannot
    """
    version, needed = current(conn), schema.VERSION
    if version is None or version == needed:
        return version
    if not version.isdecimal():
        raise errors.SchemaMismatch(
            f'The tables have the unknown version {version!r}: restore the '
            'database from a backup'
        )
    if version < needed:
        raise errors.SchemaMismatch(
            f'The tables are at version {version}, this release needs the '
            f'newer {needed}: {_SYNC}'
        )
    compatible = schema.compatible_versions.c.version
    query = sa.select(compatible).where(compatible == needed)
    if conn.execute(query).first() is None:
        raise errors.SchemaMismatch(
            f'The tables are at version {version}, newer than {needed} of '
            'this release: install the release that upgraded them'
        )
    return version


def damage(conn: Connection) -> list[str]:
    """Return the faults of the tables: missing parts, wrong counters."""
    return _missing(_columns(conn)) or _wrong_counters(conn)


def _wrong_counters(conn: Connection) -> list[str]:
    table = schema.counters
    # Before the counters, which only grow: other daemons go on meanwhile.
    used = {
        name: conn.execute(sa.select(sa.func.max(column))).scalar() or 0
        for name, column in COUNTERS.items()
    }
    values = dict(conn.execute(sa.select(table.c.name, table.c.value)).all())
    return sorted(
        f'the counter {name} is {values[name]}, and {number} is in use'
        if name in values
        else f'there is no counter {name}'
        for name, number in used.items()
        if values.get(name, -1) < number
    )


def _columns(conn: Connection) -> dict[str, set[str]]:
    query = sa.text(_COLUMNS[conn.dialect.name])
    columns: dict[str, set[str]] = defaultdict(set)
    for table, column in conn.execute(query):
        columns[table].add(column)
    return columns


def _missing(columns: dict[str, set[str]]) -> list[str]:
    tables = schema.metadata.tables
    faults = [f'there is no table {n}' for n in tables if n not in columns]
    faults += [
        f'the table {name} has no column {column.name}'
        for name, table in tables.items()
        for column in table.columns
        if name in columns and column.name not in columns[name]
    ]
    return sorted(faults)
