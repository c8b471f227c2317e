"""Counts of claims by state and age, on each database."""

import pytest
import sqlalchemy as sa

from scheduler_service.store import schema
from scheduler_service.store.claims import claim_queries, lifecycle
from tests.support.stores import (
    claim_on,
    import_two_hosts,
    move_of,
    write_claims,
)

pytestmark = pytest.mark.db


def counts(store):
    """Return what there is of each, without zeros."""
    with store.reading() as conn:
        found = claim_queries.count(conn)
    assert {state for state, _ in found} == {'claimed', 'confirmed', 'moving'}
    return {key: number for key, number in found.items() if number}


def make_older(store, claim, seconds):
    table = schema.instances
    store.write(
        lambda writer: writer.conn.execute(
            sa.update(table)
            .where(table.c.uuid == claim.consumer)
            .values(created_at=table.c.created_at - seconds)
        )
    )


def test_claims_are_counted_by_state_and_age(store):
    snapshot = import_two_hosts(store)
    assert counts(store) == {}
    claims = [claim_on(snapshot, 0) for _ in range(4)]
    for claim in claims:
        write_claims(store, claim)
    for one, seconds in zip(claims, (0, 300, 7200, 10**6), strict=True):
        make_older(store, one, seconds)
    write_claims(store, move_of(snapshot, claims[0].consumer))
    seen = {claims[3].consumer: 'compute-1'}
    store.write(lambda writer: lifecycle.confirm(writer, seen))
    assert counts(store) == {
        ('claimed', '1m'): 1,
        ('claimed', '10m'): 1,
        ('claimed', '1d'): 1,
        ('confirmed', 'older'): 1,
        ('moving', '1m'): 1,
    }
