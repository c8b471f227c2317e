"""What lists of commands read, on each database."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from scheduler_service.model import STANDARD_CLASSES, documents
from scheduler_service.scheduler import Scheduler
from scheduler_service.store import schema
from scheduler_service.store.claims import claim_queries, lifecycle
from scheduler_service.store.reading import (
    claim_counts,
    host_listing,
    residents,
)
from scheduler_service.store.records import decisions as stored_decisions
from tests.support.databases import DATABASES
from tests.support.documents import SMALL
from tests.support.engines import start_engine
from tests.support.stores import (
    claim_on,
    import_inventory,
    import_two_hosts,
    move_of,
    write_claims,
)

pytestmark = pytest.mark.db

RATIOS = dict.fromkeys(STANDARD_CLASSES, 1.0)


@pytest.fixture(params=DATABASES)
def moving_store(request, make_store):
    """A store in which an instance of project p has a claim, and a move."""
    store = make_store(request.param)
    import_inventory(store)
    engine: Scheduler = start_engine(store)
    try:
        request = documents.request({'flavor': SMALL, 'project_id': 'p'})
        first = engine.select_destinations(request).result(60)
        uuid = first.placements[0].instance_uuid
        moving = documents.request(
            {'flavor': SMALL, 'project_id': 'p', 'instance_uuids': [uuid]}
        )
        engine.select_destinations(moving, move=True).result(60)
        engine.recorder.flush()
    finally:
        engine.stop()
    return store


def test_lists_are_read_from_each_database(moving_store):
    with moving_store.reading() as conn:
        claims = claim_queries.listing(conn, project='p')
        old = claim_queries.listing(conn, older_than=3600.0)
        hosts = list(
            host_listing.rows(
                conn, host_listing.HostCriteria(), RATIOS, 'nova'
            )
        )
        decisions = stored_decisions.search(
            conn, stored_decisions.DecisionFilter(since=3600.0, project='p')
        )
        here = residents.requests(conn, 'compute-4')
    assert sorted(claim['state'] for claim in claims) == ['claimed', 'moving']
    assert all(0 <= claim['age_s'] < 3600 for claim in claims)
    assert old == []
    assert [host['host'] for host in hosts] == [
        f'compute-{n}' for n in range(1, 5)
    ]
    assert hosts[3]['memory_mb'] == '512/8196'
    assert [decision.outcome for decision in decisions] == ['chosen', 'chosen']
    # It moves away already.
    assert here == []


def counts(store):
    """Return what there is of each, without zeros."""
    with store.reading() as conn:
        found = claim_counts.count(conn)
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
