"""What lists of commands read, on each database."""

from __future__ import annotations

from datetime import timedelta

import pytest

from scheduler_service.model import STANDARD_CLASSES, documents
from scheduler_service.scheduler import Scheduler
from scheduler_service.store.claims import claim_queries
from scheduler_service.store.reading import host_listing, residents
from scheduler_service.store.records import decisions as stored_decisions
from tests.support.databases import DATABASES
from tests.support.documents import SMALL
from tests.support.engines import start_engine
from tests.support.stores import import_inventory

pytestmark = pytest.mark.db

RATIOS = dict.fromkeys(STANDARD_CLASSES, 1.0)


@pytest.fixture(params=DATABASES)
def store(request, make_store):
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


HOUR = timedelta(hours=1)


def test_lists_are_read_from_each_database(store):
    with store.reading() as conn:
        claims = claim_queries.listing(conn, project='p')
        old = claim_queries.listing(conn, older_than=HOUR)
        hosts = list(
            host_listing.rows(
                conn, host_listing.HostCriteria(), RATIOS, 'nova'
            )
        )
        decisions = stored_decisions.search(
            conn, stored_decisions.DecisionFilter(since=HOUR, project='p')
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
