"""Names that differ by a blank at their end are two, on every database."""

import pytest
import sqlalchemy as sa

from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from scheduler_service.store.records import host_reports
from tests.support.stores import (
    claim_on,
    import_inventory,
    load_snapshot,
    used_memory,
    write_claims,
)

pytestmark = pytest.mark.db
NAMES = ['h0', 'h0 ']
TWO = {
    'hosts': [
        {'host': name, 'vcpus': 8, 'memory_mb': 4096, 'local_gb': 100,
         'ram_allocation_ratio': 1.0}
        for name in NAMES
    ],
    'aggregates': [
        {'id': 1, 'name': 'a', 'hosts': NAMES, 'metadata': {'k': 'v',
                                                            'k ': 'w'}},
    ],
}  # fmt: skip


def test_hosts_are_two_when_their_names_differ_by_a_blank(store):
    import_inventory(store, TWO)
    snapshot = load_snapshot(store)
    hosts = snapshot.hosts
    assert sorted(hosts.host_at(row) for row in range(len(hosts))) == NAMES
    claims = [claim_on(snapshot, row) for row in range(2)]
    write_claims(store, *claims)
    assert used_memory(store) == [1024, 1024]
    loaded = load_snapshot(store).hosts.instances
    for claim in claims:
        assert loaded.get(claim.consumer).host == claim.host
    store.write(lambda writer: host_reports.record_heartbeats(writer, NAMES))
    with store.reading() as conn:
        seen = conn.execute(sa.select(schema.heartbeats.c.host)).scalars()
        assert sorted(seen) == NAMES
        metadata = conn.execute(sa.select(schema.aggregate_metadata)).all()
        assert sorted(row.key for row in metadata) == ['k', 'k ']


def test_every_name_that_somebody_gives_is_compared_with_its_blanks(
    shared_url,
):
    store = Store.connect(shared_url('mariadb'))
    with store.engine.begin() as conn:
        padded = conn.exec_driver_sql(
            'SELECT table_name, column_name FROM information_schema.columns '
            "WHERE table_schema = DATABASE() AND column_name IN ('host', "
            "'node', 'name', 'key', 'user_id') "
            "AND collation_name = 'utf8mb4_bin'"
        )
        assert sorted(map(tuple, padded)) == [
            ('counters', 'name'), ('daemons', 'name'), ('leases', 'name'),
            ('traits', 'name'),
        ]  # fmt: skip
    store.dispose()
