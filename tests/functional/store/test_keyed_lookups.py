"""Statements that daemons execute often read no whole table.

PostgreSQL plans them once for a connection. It takes a table that has grown
since it was analyzed last for as small as it was then.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service.store import claims, schema
from scheduler_service.store.connection import Store
from tests.support.databases import DATABASES
from tests.support.stores import (
    DEFAULT_RATIOS,
    STRICT,
    import_inventory,
    load_snapshot,
    new_claim,
    sent,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.db

MANY = 3000
BATCHES = 20
TABLES = ('instances', 'server_group_members')
GROUP, OTHER = (f'aaaaaaaa-0000-4000-8000-00000000000{n}' for n in (1, 2))
CLOUD = {
    'hosts': [
        {'host': 'compute-1', 'vcpus': 9999, 'memory_mb': 99999,
         'local_gb': 1}
    ],
    'server_groups': [
        {'uuid': one, 'name': one, 'policy': 'anti-affinity',
         'rules': {'max_server_per_host': 9999}, 'project_id': 'p'}
        for one in (GROUP, OTHER)
    ],
}  # fmt: skip


def reads(store: Store, table: str) -> tuple[int, int]:
    """Return how many rows of a table were read one by one, and by key."""
    with store.reading() as conn:
        found: Any = conn.execute(
            sa.text(
                'SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_user_tables '
                'WHERE relname = :table'
            ),
            {'table': table},
        ).one()
    return found


def fill(store: Store) -> None:
    """Store many instances, all of one group."""
    uuids = [str(uuid.uuid4()) for _ in range(MANY)]
    with store.reading() as conn, conn.begin():
        conn.execute(
            schema.instances.insert(),
            [
                {'uuid': one, 'host': 'compute-1', 'node': 'compute-1',
                 'state': 'claimed', 'document': '{}'}
                for one in uuids
            ],
        )  # fmt: skip
        conn.execute(
            schema.server_group_members.insert(),
            [{'group_uuid': OTHER, 'instance_uuid': one} for one in uuids],
        )


def claim_members(store: Store, conn: Any, snapshot: Any, count: int) -> None:
    """Claim members of a group, in batches of two."""
    for _ in range(count):
        pair = [
            new_claim(
                snapshot, 1, group=GROUP, group_owner='p', project_id='p'
            )
            for _ in range(2)
        ]
        prepared = claims.ClaimBatch(store, pair, DEFAULT_RATIOS, STRICT)
        sent(prepared, conn).wait()


@pytest.fixture
def store(make_store) -> Store:
    return make_store('postgresql', own=True)


@pytest.fixture
def watching(store):
    """Give another store of the same database."""
    other = Store.connect(store.engine.url.render_as_string(False))
    yield other
    other.dispose()


def test_claims_look_rows_up_when_their_plan_is_of_small_tables(
    store, watching
):
    import_inventory(store, CLOUD)
    snapshot = load_snapshot(store)
    with store.hold() as held:
        conn = held.execution_options(isolation_level='AUTOCOMMIT')
        with watching.reading() as analyzing:
            analyzing.execute(sa.text('ANALYZE'))
            analyzing.commit()
        claim_members(store, conn, snapshot, 1)
        fill(watching)
        start = {table: reads(watching, table) for table in TABLES}
        claim_members(store, conn, snapshot, BATCHES)
    # A session reports what it read when it ends.
    store.dispose()
    own = 2 * (BATCHES + 1)

    def read_since() -> list[tuple[int, int]]:
        """Return what was read of each table, one by one and by key."""
        return [
            (now[0] - before[0], now[1] - before[1])
            for table, before in start.items()
            for now in [reads(watching, table)]
        ]

    wait_until(lambda: all(by_key >= own for _, by_key in read_since()))
    for one_by_one, by_key in read_since():
        assert one_by_one < MANY
        # Each batch reads the members that the group has so far.
        assert by_key < BATCHES * own + MANY


@pytest.mark.parametrize('kind', DATABASES)
def test_memberships_of_an_instance_are_found_by_an_index(make_store, kind):
    store = make_store(kind)
    fill(store)
    explain = 'EXPLAIN QUERY PLAN' if kind == 'sqlite' else 'EXPLAIN'
    with store.reading() as conn:
        plan = conn.execute(
            sa.text(
                f'{explain} DELETE FROM server_group_members '
                'WHERE instance_uuid IN (:one, :other)'
            ),
            {'one': str(uuid.uuid4()), 'other': str(uuid.uuid4())},
        ).all()
    assert 'ix_server_group_members_instance_uuid' in str(plan)
