"""Creates the tables and upgrades them to the version of this package.

Commands and tests call it on their main thread; daemons do not.
"""

from __future__ import annotations

import pathlib
from typing import Any

from alembic import autogenerate, command, config, migration, script
from sqlalchemy.engine import Connection

from scheduler_service.store import schema
from scheduler_service.store.connection import Store

_HERE = pathlib.Path(__file__).parent / 'migrations'
_COUNTERS = ('revision', 'host_id')


def sync(store: Store, version: str = 'head') -> str:
    """Create or upgrade the tables; return their version.

    Tables that have the version already are not changed.
    """
    with store.engine.begin() as conn:
        command.upgrade(_config(conn), version)
        _add_counters(conn)
    return str(current(store))


def current(store: Store) -> str | None:
    """Return the version of the tables; None: there are no tables."""
    with store.reading() as conn:
        return migration.MigrationContext.configure(
            conn
        ).get_current_revision()


def head() -> str:
    """Return the version of the tables that this package needs."""
    found = script.ScriptDirectory.from_config(_config()).get_current_head()
    return str(found)


def differences(store: Store) -> list[str]:
    """Return how the tables differ from those in ``schema``."""
    with store.reading() as conn:
        context = migration.MigrationContext.configure(
            conn, opts={'compare_type': False}
        )
        found = autogenerate.compare_metadata(context, schema.metadata)
    return [str(one) for one in found]


def _config(conn: Connection | None = None) -> Any:
    settings = config.Config()
    settings.set_main_option('script_location', str(_HERE))
    settings.attributes['connection'] = conn
    return settings


def _add_counters(conn: Connection) -> None:
    """Add the counter rows that are missing."""
    table = schema.counters
    there = set(conn.execute(table.select()).scalars())
    missing = [name for name in _COUNTERS if name not in there]
    if missing:
        conn.execute(
            table.insert(), [{'name': name, 'value': 0} for name in missing]
        )
