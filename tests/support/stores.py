"""Inventories and claims in a store, and what is read back."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.columns.table import Snapshot
from scheduler_service.model import Aggregate, documents
from scheduler_service.settings import Settings
from scheduler_service.store import claims, schema, version
from scheduler_service.store.claims import claim_queries
from scheduler_service.store.connection import Store
from scheduler_service.store.reading import loading, snapshot
from scheduler_service.store.records import audit
from scheduler_service.store.writing import inventory_import
from tests.support.documents import INVENTORY

# Allocation ratios of hosts that have none of their own.
DEFAULT_RATIOS = {
    name: Settings().default_ratio(name)
    for name in ('VCPU', 'MEMORY_MB', 'DISK_GB')
}
# Policies that a claim has to keep; soft ones are only weighed.
STRICT = ('affinity', 'anti-affinity')
HOSTS = ('compute-1', 'compute-2', 'compute-3')
POOL = {
    'id': '794ccc2c-d751-44fe-b57f-8894c9f5c842',
    'name': 'default',
    'attributes': {'pool_level': 'gold'},
}
INSTANCE = '11111111-2222-4333-8444-555555555555'
FULL_INVENTORY = {
    'pools': [POOL],
    'hosts': [
        {
            'host': 'compute-1',
            'vcpus': 8,
            'memory_mb': 4096,
            'memory_mb_used': 1024,
            'local_gb': 100,
            'ram_allocation_ratio': 1.0,
            'traits': ['HW_B', 'HW_A'],
            'resources': {'CUSTOM_FPGA': {'total': 4, 'used': 1}},
            'cpu_info': {'features': ['aes']},
            'metrics': [{'name': 'load', 'value': 0.5}],
            'num_instances': 3,
        },
        {'host': 'Compute-1', 'vcpus': 2, 'disk_available_least': 3},
    ],
    'aggregates': [
        {'id': 7, 'name': 'ssd', 'hosts': ['compute-1'],
         'metadata': {'availability_zone': 'z1'}},
    ],
    'instances': [
        {'uuid': INSTANCE, 'host': 'compute-1', 'project_id': 'p',
         'flavor': {'flavorid': '1'}},
    ],
    'server_groups': [
        {'uuid': 'aaaaaaaa-0000-4000-8000-000000000001', 'name': 'web',
         'policy': 'anti-affinity', 'rules': {'max_server_per_host': 2},
         'members': [INSTANCE]},
    ],
}  # fmt: skip


def import_inventory(
    store: Store, document: Any = None, **how: Any
) -> inventory_import.Report:
    """Import a document, by default INVENTORY; return the report."""
    parsed = documents.inventory(INVENTORY if document is None else document)
    return store.write(
        lambda writer: inventory_import.Importer(writer, **how).run(parsed)
    )


def wipe(store: Store) -> None:
    """Empty every table but that of versions; counters start anew."""
    tables = [
        table
        for table in reversed(schema.metadata.sorted_tables)
        if table not in (schema.counters, schema.compatible_versions)
    ]
    with store.engine.begin() as conn:
        # Most are empty: one round trip finds those that are not.
        filled = ' UNION ALL '.join(
            f"SELECT '{table.name}' FROM (SELECT 1 AS one) AS row_ "
            f'WHERE EXISTS (SELECT 1 FROM {table.name})'
            for table in tables
        )
        found = set(conn.exec_driver_sql(filled).scalars())
        for table in tables:
            if table.name in found:
                conn.execute(sa.delete(table))
        counters = schema.counters
        counted = counters.c.name.in_(version.COUNTERS)
        conn.execute(sa.delete(counters).where(sa.not_(counted)))
        conn.execute(sa.update(counters).values(value=0))


def load_snapshot(store: Store) -> Snapshot:
    """Return what a daemon loads at its start."""
    with store.reading() as conn:
        return snapshot.load_snapshot(conn)


def import_two_hosts(store: Store) -> Snapshot:
    """Import two hosts of 4,096 MB; return the snapshot."""
    import_inventory(store, {'hosts': [
        {'host': name, 'vcpus': 8, 'memory_mb': 4096, 'local_gb': 100,
         'ram_allocation_ratio': 1.0}
        for name in HOSTS[:2]
    ]})  # fmt: skip
    return load_snapshot(store)


def new_claim(snapshot: Snapshot, memory_mb: int, **how: Any) -> claims.Claim:
    """Return a claim of a new consumer on the first host, compute-1."""
    values = {
        'consumer': str(uuid.uuid4()),
        'host_id': int(snapshot.hosts.ids[0]),
        'host': 'compute-1',
        'node': 'compute-1',
        'amounts': {'MEMORY_MB': memory_mb, 'VCPU': 1},
        'ratios': {},
        'project_id': None,
        'request_id': 'req-1',
        'document': '{}',
        'placement': '{"instance_uuid": "x"}',
        # Not compared with releases.
        'releases_seen': sys.maxsize,
    }
    return claims.Claim(**{**values, **how})


def claim_on(snapshot: Snapshot, row: int, **how: Any) -> claims.Claim:
    """Return a claim of 1,024 MB on the host of a row."""
    place = {
        'host_id': int(snapshot.hosts.ids[row]),
        'host': snapshot.hosts.host_at(row),
        'node': snapshot.hosts.node_at(row),
    }
    return new_claim(snapshot, 1024, **{**place, **how})


def sharing_claim(
    snapshot: Snapshot, row: int, amounts: dict[str, int], **how: Any
) -> claims.Claim:
    """Return a claim on the host of a row and on its aggregates."""
    shared = snapshot.hosts.providers(row, amounts)
    promised = {'amounts': amounts, 'shared': shared}
    placement = msgspec.json.encode(promised).decode()
    how = {'amounts': amounts, 'shared': shared, **how}
    return claim_on(snapshot, row, placement=placement, **how)


def sent(batch: claims.ClaimBatch, conn: Connection) -> claims.ClaimBatch:
    """Send a batch of claims.

    :param conn: in autocommit mode, for claims that travel in one round trip
    """
    return batch.send(conn if batch.statements else None)


def write_claims(
    store: Store, *wanted: claims.Claim, policies: Sequence[str] = ()
) -> int:
    """Write a batch of claims as a daemon does; return the revision.

    :param policies: of server groups that the claims have to keep
    """
    with store.hold() as conn:
        single = conn.execution_options(isolation_level='AUTOCOMMIT')
        prepared = claims.ClaimBatch(store, wanted, DEFAULT_RATIOS, policies)
        return sent(prepared, single).wait()


def used_amounts(store: Store) -> dict[str, int]:
    """Return what is used of the first host, by resource class."""
    columns = load_snapshot(store).hosts.resources
    return {name: int(one.used[0]) for name, one in columns.items()}


def used_memory(store: Store) -> list[int]:
    """Return the memory in MB that is used of each host."""
    return load_snapshot(store).hosts.resources['MEMORY_MB'].used.tolist()


def stored_host(store: Store, name: str = 'compute-1') -> Any:
    """Return a host as it is in the store; None where it is not there."""
    with store.reading() as conn:
        return {h.host: h for h in loading.hosts(conn).values()}.get(name)


def is_waiting(store: Store) -> bool:
    """Whether a transaction of a PostgreSQL waits for another one."""
    text = sa.text('SELECT count(*) FROM pg_locks WHERE NOT granted')
    with store.reading() as conn:
        return bool(conn.execute(text).scalar_one())


def claim_state(store: Store, consumer: str) -> str | None:
    """Return 'claimed' or 'confirmed'; None where there is no claim."""
    with store.reading() as conn:
        try:
            return claim_queries.show(conn, consumer)['state']
        except errors.ClaimNotFound:
            return None


def audit_findings(store: Store) -> list[str]:
    """Return what an audit finds, each with its kind."""
    with store.reading() as conn:
        found = audit.audit(conn, DEFAULT_RATIOS)
    return [f'{finding.kind}: {finding.text}' for finding in found.findings]


def assert_same_snapshot(one: Snapshot, two: Snapshot) -> None:
    """Compare two snapshots host by host."""
    assert one.revision == two.revision
    assert one.pools == two.pools
    first, second = one.hosts, two.hosts
    assert first.ids.tolist() == second.ids.tolist()
    for name in first.coded:
        values = [first.coded[name].at(row) for row in range(len(first))]
        others = [second.coded[name].at(row) for row in range(len(second))]
        assert values == others, name
    for name in first.numbers:
        assert str(first.numbers[name]) == str(second.numbers[name]), name
    assert first.resources.keys() == second.resources.keys()
    for name, columns in first.resources.items():
        assert str(columns) == str(second.resources[name]), name
    assert set(first.instances) == set(second.instances)
    assert first.groups == second.groups
    assert [*map(_without_use, first.topology.aggregates.values())] == [
        *map(_without_use, second.topology.aggregates.values())
    ]


def _without_use(aggregate: Aggregate) -> Any:
    """Return an aggregate without the use of when it was read."""
    document = msgspec.to_builtins(aggregate)
    for offered in document.get('resources', {}).values():
        offered.pop('used', None)
    return document


def move_of(snapshot: Snapshot, consumer: str, **how: Any) -> claims.Claim:
    """Return the claim of a move to the second of two hosts."""
    how = {'consumer': consumer, 'is_present': True, 'move': True, **how}
    return claim_on(snapshot, 1, **how)
