"""Databases on the servers that tests run, and in files.

Migrations run once on each server, and once for SQLite; every other database
is a copy of that one.
"""

from __future__ import annotations

import functools
import pathlib
import tempfile
import uuid

import sqlalchemy as sa

from scheduler_service.store import migrate
from scheduler_service.store.connection import Store
from tests.support.stores import import_inventory

DATABASES = ['sqlite', 'postgresql', 'mariadb']
# The database that others are copied from, and its name until it is migrated.
TEMPLATE, UNFINISHED = 'migrated', 'migrating'
_LOCK = 'SELECT pg_advisory_lock(7)', 'SELECT pg_advisory_unlock(7)'


def new_database(base: str) -> str:
    """Create an empty database with a name of its own; return its URL.

    :param base: URL of the server without a database; for SQLite, of a folder
    """
    name = _new_name()
    if base.startswith('sqlite'):
        return f'{base}{name}.sqlite'
    with _server(base) as conn:
        conn.exec_driver_sql(f'CREATE DATABASE {name}')
    return base + name


def migrated_database(base: str) -> str:
    """Create a database that has its tables; return its URL."""
    if base.startswith('sqlite'):
        url = new_database(base)
        pathlib.Path(url.removeprefix('sqlite:///')).write_bytes(_sqlite())
        return url
    if base.startswith('postgresql'):
        _migrate_template(base)
        name = _new_name()
        with _server(base) as conn:
            conn.exec_driver_sql(f'CREATE DATABASE {name} TEMPLATE {TEMPLATE}')
        return base + name
    url = new_database(base)
    with _autocommit(url) as conn:
        for statement in _mariadb(base):
            conn.exec_driver_sql(statement)
    return url


def ready_database(base: str) -> str:
    """Return the URL of a database with its tables and INVENTORY."""
    url = migrated_database(base)
    store = Store.connect(url)
    import_inventory(store)
    store.dispose()
    return url


def _new_name() -> str:
    return f't{uuid.uuid4().hex[:12]}'


def _autocommit(url: str) -> sa.Connection:
    engine = sa.create_engine(
        url, isolation_level='AUTOCOMMIT', poolclass=sa.NullPool
    )
    return engine.connect()


def _server(base: str) -> sa.Connection:
    return _autocommit(base + ('postgres' if 'postgresql' in base else ''))


def _migrate(url: str) -> None:
    store = Store.connect(url)
    migrate.sync(store)
    store.dispose()


@functools.cache
def _sqlite() -> bytes:
    """Return the contents of a migrated file."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / 'migrated.sqlite'
        _migrate(f'sqlite:///{path}')
        return path.read_bytes()


@functools.cache
def _migrate_template(base: str) -> None:
    """Make the template of PostgreSQL, unless another process did."""
    with _server(base) as conn:
        conn.exec_driver_sql(_LOCK[0])
        found = conn.execute(
            sa.text('SELECT 1 FROM pg_database WHERE datname = :name'),
            {'name': TEMPLATE},
        )
        if not found.all():
            conn.exec_driver_sql(f'CREATE DATABASE {UNFINISHED}')
            _migrate(base + UNFINISHED)
            conn.exec_driver_sql(
                f'ALTER DATABASE {UNFINISHED} RENAME TO {TEMPLATE}'
            )
        conn.exec_driver_sql(_LOCK[1])


@functools.cache
def _mariadb(base: str) -> tuple[str, ...]:
    """Return the statements that copy a migrated database of MariaDB."""
    url = new_database(base)
    _migrate(url)
    template = url.removeprefix(base)
    made, filled = [], []
    with _autocommit(url) as conn:
        for name in sa.inspect(conn).get_table_names():
            shown = conn.exec_driver_sql(f'SHOW CREATE TABLE {name}').one()
            made.append(str(shown[1]))
            filled.append(
                f'INSERT INTO {name} SELECT * FROM {template}.{name}'
            )
    # Tables come before those that their foreign keys name.
    return 'SET foreign_key_checks = 0', *made, *filled
