"""Creates the tables and upgrades them to the version of this package.

Commands and tests call it on their main thread; daemons do not.
"""

from __future__ import annotations

import pathlib
from typing import Any

import sqlalchemy as sa
from alembic import autogenerate, command, config, migration, script
from sqlalchemy.engine import Connection

from scheduler_service.store import schema, version
from scheduler_service.store.connection import Store

_HERE = pathlib.Path(__file__).parent / 'migrations'
# Declared in a migration: the releases before it may use the tables after it.
_SAFE = 'safe_for_older_releases'


def sync(store: Store, wanted: str = 'head') -> str:
    """Create or upgrade the tables; return their version.

    Tables that have the version already are not changed, nor are those of a
    newer version that this release can use.

    :raises SchemaMismatch: this release cannot upgrade the tables
    :raises StoreUnavailable: the database does not answer
    """
    before = current(store)
    ours = {one.revision for one in _scripts().walk_revisions()}
    if before is not None and before not in ours:
        with store.reading() as conn:
            return version.check(conn)
    with store.engine.begin() as conn:
        command.upgrade(_config(conn), wanted)
        _correct_counters(conn)
        if wanted == 'head':
            _name_compatible_versions(conn)
    return str(current(store))


def current(store: Store) -> str | None:
    """Return the version of the tables; None: there are no tables.

    :raises SchemaMismatch: there are tables and no version
    :raises StoreUnavailable: the database does not answer
    """
    with store.reading() as conn:
        return version.current(conn)


def head() -> str:
    """Return the version of the tables that this package needs."""
    return str(_scripts().get_current_head())


def differences(store: Store) -> list[str]:
    """Return how the tables differ from those in ``schema``.

    :raises StoreUnavailable: the database does not answer
    """
    with store.reading() as conn:
        context = migration.MigrationContext.configure(
            conn, opts={'compare_type': False}
        )
        found = autogenerate.compare_metadata(context, schema.metadata)
    return [str(one) for one in found]


def compatible_versions() -> list[str]:
    """Return the versions whose releases may use the newest tables."""
    found = []
    for one in _scripts().walk_revisions():
        found.append(one.revision)
        if not getattr(one.module, _SAFE, False):
            break
    return found


def _config(conn: Connection | None = None) -> Any:
    settings = config.Config()
    settings.set_main_option('script_location', str(_HERE))
    settings.attributes['connection'] = conn
    return settings


def _scripts() -> script.ScriptDirectory:
    return script.ScriptDirectory.from_config(_config())


def _correct_counters(conn: Connection) -> None:
    """Add the counters that are missing; let none be behind what is used."""
    table = schema.counters
    for name, column in version.COUNTERS.items():
        mine = table.c.name == name
        used = conn.execute(sa.select(sa.func.max(column))).scalar() or 0
        value = conn.execute(sa.select(table.c.value).where(mine)).scalar()
        if value is None:
            conn.execute(table.insert(), {'name': name, 'value': used})
        elif value < used:
            conn.execute(sa.update(table).where(mine).values(value=used))


def _name_compatible_versions(conn: Connection) -> None:
    """Store which releases may use the tables, for releases before this."""
    table = schema.compatible_versions
    conn.execute(sa.delete(table))
    conn.execute(
        table.insert(), [{'version': one} for one in compatible_versions()]
    )
