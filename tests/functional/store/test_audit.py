"""An audit compares what is used with what is allocated."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.store import schema
from scheduler_service.store.claims import claim_queries
from scheduler_service.store.records import audit
from tests.support.stores import (
    FULL_INVENTORY,
    audit_findings,
    import_inventory,
    load_snapshot,
    new_claim,
    used_amounts,
    write_claims,
)

pytestmark = pytest.mark.db


def test_every_kind_of_finding_is_reported_and_fixed(store):
    import_inventory(store, FULL_INVENTORY)
    snapshot = load_snapshot(store)
    write_claims(store, new_claim(snapshot, 512))
    assert audit_findings(store) == []
    host_id = int(snapshot.hosts.ids[0])
    stranger = str(uuid.uuid4())

    def spoil(writer: Any) -> None:
        conn = writer.conn
        table = schema.inventories
        conn.execute(
            sa.update(table)
            .where(table.c.host_id == host_id,
                   table.c.resource_class == 'MEMORY_MB')
            .values(used=99_999)
        )  # fmt: skip
        for kind, owner in (('VCPU', stranger), ('GONE', stranger)):
            conn.execute(schema.allocations.insert(), {
                'consumer_uuid': owner, 'host_id': host_id,
                'resource_class': kind, 'amount': 1,
            })  # fmt: skip

    store.write(spoil)
    found = audit_findings(store)
    assert sorted({one.split(':')[0] for one in found}) == [
        'orphaned', 'overcommitted', 'unknown', 'used',
    ]  # fmt: skip
    store.write(audit.fix)
    assert audit_findings(store) == []
    assert used_amounts(store)['MEMORY_MB'] == 1536


def test_claim_not_found_is_raised_when_there_is_none(store):
    with (
        store.reading() as conn,
        pytest.raises(errors.ClaimNotFound),
    ):
        claim_queries.show(conn, str(uuid.uuid4()))
