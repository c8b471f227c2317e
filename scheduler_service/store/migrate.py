"""Creates the tables and upgrades them to the version of this package.

Commands and tests call it on their main thread; daemons do not.
"""

from __future__ import annotations

import pathlib
import secrets
import time
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import autogenerate, command, config, migration, script
from oslo_db import exception as db_exception
from sqlalchemy.engine import Connection

from scheduler_service.store import schema, version
from scheduler_service.store.connection import Store
from scheduler_service.store.driver_errors import met_others

_HERE = pathlib.Path(__file__).parent / 'migrations'
# Declared in a migration: the releases before it may use the tables after it.
_SAFE = 'safe_for_older_releases'
# How often a migration is tried that gets no lock, and the pause after each,
# in seconds, in which daemons work off what waited for it.
_TRIES = 10
_PAUSE_S = 1.0


def sync(store: Store) -> str:
    """Create or upgrade the tables; return their version.

    Tables that have the version already are not changed, nor are those of a
    newer version that this release can use. Each migration is a transaction
    of its own, which is tried again where it is in the way of daemons: these
    go on meanwhile.

    :raises SchemaMismatch: this release cannot upgrade the tables
    :raises StoreUnavailable: the database does not answer
    """
    before = current(store)
    revisions = {revision.revision for revision in _scripts().walk_revisions()}
    if before is not None and before not in revisions:
        with store.reading() as conn:
            return version.check(conn)
    between = _scripts().iterate_revisions('head', before or 'base')
    for revision in [each.revision for each in between][::-1]:

        def upgrade(conn: Connection, to: str = revision) -> None:
            command.upgrade(_config(conn), to)

        _attempt(store, upgrade)
    for work in (_correct_counters, _name_store, _name_compatible_versions):
        _attempt(store, work)
    return str(current(store))


def _attempt(store: Store, work: Callable[[Connection], None]) -> None:
    """Run work in a transaction; again where it met those of daemons."""
    for retries in reversed(range(_TRIES)):
        try:
            with store.engine.begin() as conn:
                return work(conn)
        except (sa.exc.DBAPIError, db_exception.DBError) as fault:
            if not retries or not met_others(fault):
                raise
            time.sleep(_PAUSE_S)


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
            conn,
            opts={
                'compare_type': False,
                # Other tables may be in the database.
                'include_name': lambda name, kind, parents: (
                    kind != 'table' or name in schema.metadata.tables
                ),
            },
        )
        differing = autogenerate.compare_metadata(context, schema.metadata)
    return sorted(_sentence(item) for item in differing)


def _sentence(difference: Any) -> str:
    """Return a difference as Alembic describes it in words."""
    if isinstance(difference, list):
        kind, _, table, column, *_ = difference[0]
        what = kind.removeprefix('modify_').replace('_', ' ')
        return f'the column {column} of {table} has another {what}'
    kind, *_, item = difference
    verb, _, noun = kind.partition('_')
    table = getattr(item, 'table', None)
    where = '' if table is None else f' of {table.name}'
    state = 'is missing' if verb == 'add' else 'is not of this release'
    return f'the {noun} {item.name}{where} {state}'


def compatible_versions() -> list[str]:
    """Return the versions whose releases may use the newest tables."""
    versions = []
    for revision in _scripts().walk_revisions():
        versions.append(revision.revision)
        if not getattr(revision.module, _SAFE, False):
            break
    return versions


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


def _name_store(conn: Connection) -> None:
    """Give the store its id, which daemons on a topic compare."""
    table = schema.counters
    mine = table.c.name == version.STORE
    if conn.execute(sa.select(table.c.value).where(mine)).first() is None:
        number = secrets.randbits(62)
        conn.execute(table.insert(), {'name': version.STORE, 'value': number})


def _name_compatible_versions(conn: Connection) -> None:
    """Store which releases may use the tables, for releases before this."""
    table = schema.compatible_versions
    conn.execute(sa.delete(table))
    conn.execute(
        table.insert(),
        [{'version': version} for version in compatible_versions()],
    )
