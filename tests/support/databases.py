"""Databases on the servers that tests run, and in files.

Migrations run once on each server, and once for SQLite; every other database
is a copy of that one.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import pathlib
import re
import sqlite3
import tempfile
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import sqlalchemy as sa

from scheduler_service.store import migrate
from scheduler_service.store.connection import Store
from scheduler_service.store.sessions import Timeouts
from tests.support.stores import import_inventory, wipe

DATABASES = ['sqlite', 'postgresql', 'mariadb']
# The database that others are copied from, and its name until it is migrated.
TEMPLATE, UNFINISHED = 'migrated', 'migrating'
# Sessions of this database that wait for a row's lock.
_WAITING = (
    'SELECT count(*) FROM pg_stat_activity WHERE '
    "datname = current_database() AND wait_event_type = 'Lock'"
)
# Of all databases of a MariaDB, and those of this one.
_LOCK_WAIT = re.compile(r'\nLOCK WAIT .*\nMariaDB thread id (\d+)')
_OWN = 'SELECT id FROM information_schema.processlist WHERE db = DATABASE()'
_LISTENERS: dict[Store, list[tuple[str, Callable[..., None]]]] = (
    collections.defaultdict(list)
)
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


@contextlib.contextmanager
def session(url: str) -> Iterator[sa.Connection]:
    """Give a connection to a database, with a transaction that is committed.

    It is closed at the end: an engine of its own would keep it.
    """
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as conn:
        yield conn


def migrated_database(base: str) -> str:
    """Create a database that has its tables; return its URL."""
    if base.startswith('sqlite'):
        url = new_database(base)
        pathlib.Path(url.removeprefix('sqlite:///')).write_bytes(_sqlite())
        return url
    if base.startswith('postgresql'):
        _migrate_template(base)
        return copy_of(base + TEMPLATE)
    return copy_of(_migrated_mariadb(base))


def copy_of(url: str) -> str:
    """Copy a database that nobody is connected to; return the copy's URL.

    :param url: of PostgreSQL or MariaDB; the tables of MariaDB are looked at
        once
    """
    base, slash, name = url.rpartition('/')
    base += slash
    if url.startswith('postgresql'):
        copy = _new_name()
        with _server(base) as conn:
            conn.exec_driver_sql(f'CREATE DATABASE {copy} TEMPLATE {name}')
        return base + copy
    made = new_database(base)
    with _autocommit(made) as conn:
        for statement in _copying(url):
            conn.exec_driver_sql(statement)
    return made


def connect(url: str) -> Store:
    """Return a store for a test with many threads.

    As on the servers, what is written survives the end of a process, not
    that of the machine: a file is not forced to the disk.
    """
    store = Store.connect(url, max_pool_size=20)
    if url.startswith('sqlite'):

        @sa.event.listens_for(store.engine, 'connect')
        def do_not_force(raw: sqlite3.Connection, record: object) -> None:
            raw.execute('PRAGMA synchronous = OFF')

    return store


def waiting(store: Store) -> int:
    """Return how many sessions wait for the lock of a row."""
    with store.reading() as conn:
        if store.dialect == 'postgresql':
            return int(conn.exec_driver_sql(_WAITING).scalar_one())
        # Tables of the server show this as it was until nobody has asked for
        # 0.1 s, and tests in other processes ask as well.
        status = conn.exec_driver_sql('SHOW ENGINE INNODB STATUS').one()
        waits = {*map(int, _LOCK_WAIT.findall(status.Status))}
        return len(waits.intersection(conn.exec_driver_sql(_OWN).scalars()))


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold the lock that every writer of an SQLite file needs."""
    with contextlib.closing(sqlite3.connect(path)) as conn:
        conn.execute('BEGIN IMMEDIATE')
        yield


def listens(store: Store, event: str) -> Callable[[Callable[..., None]], None]:
    """Have a function listen to an event of a store, until a test ends."""

    def listen(function: Callable[..., None]) -> None:
        sa.event.listen(store.engine, event, function)
        _LISTENERS[store].append((event, function))

    return listen


class IdleStores:
    """Stores with empty tables, each lent to one test after the other.

    To make a database takes longer than to empty one, and an engine that is
    kept has its statements compiled.

    :param base: gives the URL of a kind's server without the database
    """

    def __init__(self, base: Callable[[str], str]) -> None:
        self._base = functools.cache(base)
        self._idle: dict[str, list[Store]] = collections.defaultdict(list)

    def take(self, kind: str) -> Store:
        """Return a store that nobody uses, with nothing in it."""
        if self._idle[kind]:
            store = self._idle[kind].pop()
            wipe(store)
            return store
        return connect(migrated_database(self._base(kind)))

    def give(self, kind: str, store: Store) -> None:
        """Take a store back."""
        for event, function in _LISTENERS.pop(store, ()):
            sa.event.remove(store.engine, event, function)
        store.dispose()
        store.timeouts = Timeouts()
        store.on_retry = lambda reason: None
        self._idle[kind].append(store)


def ready_database(base: str, inventory: Any = None) -> str:
    """Return the URL of a database with its tables and hosts.

    :param inventory: a document; by default INVENTORY
    """
    url = migrated_database(base)
    store = Store.connect(url)
    import_inventory(store, inventory)
    store.dispose()
    return url


def backup(store: Store) -> Callable[[], None]:
    """Copy a database as it is; return a function that restores the copy.

    Both are one step for whoever uses the database meanwhile; connections to
    PostgreSQL end.
    """
    url = store.engine.url.render_as_string(hide_password=False)
    if url.startswith('sqlite'):
        return _backup_sqlite(url.removeprefix('sqlite:///'))
    base, _, name = url.partition('?')[0].rpartition('/')
    if url.startswith('postgresql'):
        return _backup_postgresql(f'{base}/', name)
    return _backup_mariadb(f'{base}/', name)


def _backup_sqlite(path: str) -> Callable[[], None]:
    copy = sqlite3.connect(':memory:', check_same_thread=False)
    with contextlib.closing(sqlite3.connect(path)) as live:
        live.backup(copy)

    def restore() -> None:
        with contextlib.closing(sqlite3.connect(path)) as live:
            copy.backup(live)
        copy.close()

    return restore


def _backup_postgresql(base: str, name: str) -> Callable[[], None]:
    copy = _new_name()

    def replace(old: str, new: str) -> None:
        with _server(base) as conn:
            end = f'ALTER DATABASE {new} ALLOW_CONNECTIONS'
            conn.exec_driver_sql(f'{end} false')
            conn.exec_driver_sql(
                'SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity '
                f"WHERE datname = '{new}'"
            )
            conn.exec_driver_sql(f'CREATE DATABASE {old} TEMPLATE {new}')
            conn.exec_driver_sql(f'{end} true')

    replace(copy, name)

    def restore() -> None:
        with _server(base) as conn:
            conn.exec_driver_sql(f'DROP DATABASE {name} WITH (FORCE)')
        replace(name, copy)

    return restore


def _backup_mariadb(base: str, name: str) -> Callable[[], None]:
    def copied() -> str:
        """Copy all tables into a new database; return its name."""
        copy = new_database(base).removeprefix(base)
        with _autocommit(base + source) as conn:
            for table in tables:
                made = f'{copy}.{table}'
                conn.exec_driver_sql(f'CREATE TABLE {made} LIKE {table}')
                conn.exec_driver_sql(
                    f'INSERT INTO {made} SELECT * FROM {table}'
                )
        return copy

    with _autocommit(base + name) as conn:
        tables = sa.inspect(conn).get_table_names()
    source = name
    source = copied()

    def restore() -> None:
        fresh, gone = copied(), new_database(base).removeprefix(base)
        renamed = ', '.join(
            f'{name}.{table} TO {gone}.{table}, '
            f'{fresh}.{table} TO {name}.{table}'
            for table in tables
        )
        with _autocommit(base + name) as conn:
            conn.exec_driver_sql(f'RENAME TABLE {renamed}')

    return restore


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


def tables_of_mariadb(base: str) -> tuple[str, ...]:
    """Return the statements that copy a migrated database of MariaDB."""
    return _copying(_migrated_mariadb(base))


@functools.cache
def _migrated_mariadb(base: str) -> str:
    """Return the URL of a database of MariaDB that others are copied from."""
    url = new_database(base)
    _migrate(url)
    return url


@functools.cache
def _copying(url: str) -> tuple[str, ...]:
    """Return the statements that copy a database of MariaDB."""
    template = url.rpartition('/')[2]
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
