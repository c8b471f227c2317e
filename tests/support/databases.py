"""Databases on the servers that tests run, and in files."""

from __future__ import annotations

import uuid

import sqlalchemy as sa

from scheduler_service.store import migrate
from scheduler_service.store.connection import Store
from tests.support.stores import import_inventory

DATABASES = ['sqlite', 'postgresql', 'mariadb']


def new_database(base: str) -> str:
    """Create a database with a name of its own; return its URL.

    :param base: URL of the server without a database; for SQLite, of a folder
    """
    name = f't{uuid.uuid4().hex[:12]}'
    if base.startswith('sqlite'):
        return f'{base}{name}.sqlite'
    home = 'postgres' if base.startswith('postgresql') else ''
    engine = sa.create_engine(base + home, isolation_level='AUTOCOMMIT')
    with engine.connect() as conn:
        conn.exec_driver_sql(f'CREATE DATABASE {name}')
    engine.dispose()
    return base + name


def ready_database(base: str) -> str:
    """Return the URL of a database with its tables and INVENTORY."""
    url = new_database(base)
    store = Store.connect(url)
    migrate.sync(store)
    import_inventory(store)
    store.dispose()
    return url
