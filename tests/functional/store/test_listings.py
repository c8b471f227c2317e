"""What lists of commands read, on each database."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service import moments
from scheduler_service.model import (
    Placement,
    Selection,
    documents,
)
from scheduler_service.scheduler import Scheduler
from scheduler_service.store import schema
from scheduler_service.store.claims import claim_queries
from scheduler_service.store.connection import Store
from scheduler_service.store.reading import residents
from scheduler_service.store.records import decision_list
from scheduler_service.store.records import decisions as stored_decisions
from scheduler_service.store.records.decision_list import DecisionFilter
from scheduler_service.store.records.decisions import Decision
from tests.support.databases import DATABASES
from tests.support.documents import SMALL
from tests.support.engines import start_engine, store_all
from tests.support.stores import import_inventory
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.db


@pytest.fixture(params=DATABASES)
def store(request, make_store):
    """A store in which an instance of project p has a claim, and a move."""
    store = make_store(request.param)
    import_inventory(store)
    engine: Scheduler = start_engine(store)
    try:
        request = documents.request({'flavor': SMALL, 'project_id': 'p'})
        first = engine.select_destinations(request).result(LIMIT_S)
        uuid = first.placements[0].instance_uuid
        moving = documents.request(
            {'flavor': SMALL, 'project_id': 'p', 'instance_uuids': [uuid]}
        )
        engine.select_destinations(moving, move=True).result(LIMIT_S)
        store_all(engine)
    finally:
        engine.stop()
    return store


HOUR = timedelta(hours=1)


def test_lists_are_read_from_each_database(store):
    with store.reading() as conn:
        claims = claim_queries.listing(conn, project='p')
        oldest = claim_queries.listing(conn, oldest=True)
        old = claim_queries.listing(conn, older_than=HOUR)
        decisions = decision_list.search(
            conn, DecisionFilter(since=HOUR, project='p')
        )
        here = residents.requests(conn, 'compute-4')
    assert [claim['state'] for claim in oldest] == ['claimed', 'moving']
    assert [claim['state'] for claim in claims] == ['moving', 'claimed']
    assert all(0 <= claim['age_s'] < 3600 for claim in claims)
    assert old == []
    assert [decision.outcome for decision in decisions] == ['chosen', 'chosen']
    # It moves away already.
    assert here == []


def placed(uuid: str, host: str) -> Placement:
    return Placement(
        instance_uuid=uuid, selected=Selection(host=host, node=host, uuid='')
    )


REFUSAL = {
    'facts': {
        'funnel': [
            {'filter': 'First', 'start': 9, 'end': 4},
            {'filter': 'Last', 'start': 4, 'end': 0},
        ]
    }
}
POOL_REFUSAL = {'facts': {'funnel': [{'filter': 'attribute', 'left': 0}]}}
ONE, TWO = str(uuid.UUID(int=1)), 'odd, "name'
MADE = [
    ('a', 'k', 'chosen', {'project_id': 'p', 'user_id': 'u', 'placements': [
        placed(ONE, 'host-1'), placed(TWO, 'Host-1')]}, 'b', 'c'),
    ('d', 'k', 'NoValidHost', {
        'project_id': 'P', 'user_id': 'U', 'error': REFUSAL,
        'instance_uuids': [ONE]}, None, 'a'),
    ('e', 'z', 'NoValidPool', {'error': POOL_REFUSAL}, 'a', None),
    ('f', 'k', 'chosen', {'user_id': 300 * 'ü', 'placements': [
        placed('x', 'a\nhost-1\nb')]}),
]  # fmt: skip


def test_lists_of_decisions_have_and_search_what_the_documents_have(store):
    made = [Decision(*each) for each in MADE]
    store.write(lambda writer: stored_decisions.record(writer, made))

    def found(limit: int | None = None, **criteria: Any) -> list[str]:
        wanted = DecisionFilter(**criteria)
        with store.reading() as conn:
            rows = decision_list.search(conn, wanted, limit)
            if limit is None:
                assert decision_list.count(conn, wanted) == len(rows)
        return [row.request_id for row in rows if row.request_id in 'adef']

    assert found() == ['f', 'e', 'd', 'a']
    assert found(limit=2) == ['f', 'e']
    assert found(host='host-1') == ['a']
    assert found(host='Host-1') == ['a']
    for nobody in ('host', 'host-', 'HOST-1', '', 'host_1', '%', 'a'):
        assert found(host=nobody) == []
    assert found(instance=ONE) == ['d', 'a']
    assert found(instance=TWO) == ['a']
    assert (found(project='p'), found(project='P')) == (['a'], ['d'])
    assert (found(user='u'), found(user='U')) == (['a'], ['d'])
    assert (found(user='p'), found(user=255 * 'ü')) == ([], ['f'])
    assert (found(filter='Last'), found(filter='First')) == (['d'], [])
    assert found(filter='attribute') == ['e']
    assert found(request='a') == ['e', 'd', 'a']
    assert (found(request='b'), found(request='c')) == (['a'], ['a'])
    with store.reading() as conn:
        first, *_ = decision_list.search(conn, DecisionFilter(request='d'))
        assert found(before=first.id) == ['a']
        assert (first.filter, first.project_id) == ('Last', 'P')
        shown = stored_decisions.show(conn, ONE)
    assert [each['request_id'] for each in shown] == ['a', 'd']


def times_of(store: Store, request_id: str) -> list[tuple[str, int]]:
    """Return the outcomes of a request with their numbers, newest first."""
    with store.reading() as conn:
        rows = decision_list.search(conn, DecisionFilter(request=request_id))
    return [(row.outcome, row.times) for row in rows]


def test_a_verdict_that_is_repeated_is_one_decision_with_a_number(store):
    def write(*made: Any) -> int:
        rows = [Decision(*each) for each in made]
        return store.write(lambda w: stored_decisions.record(w, rows))

    a, d, e, f = MADE
    assert write(a, d, e, ('f', 'k', 'passed', f[3])) == 4
    with store.reading() as conn:
        (before,) = decision_list.search(conn, DecisionFilter(request='f'))
    again = ('f', 'k', 'passed', {**f[3], 'user_id': 'again'})
    # Its reasons may differ, and so may what comes between.
    assert write(d, again, d) == 0
    assert write(again, d) == 0
    assert times_of(store, 'f') == [('passed', 3)]
    with store.reading() as conn:
        (after,) = decision_list.search(conn, DecisionFilter(request='f'))
        (shown,) = stored_decisions.show(conn, 'f')
    assert before.times == 1
    assert after.first_at == before.first_at == before.created_at
    assert after.created_at >= before.created_at
    assert after.id > before.id
    assert (shown['times'], shown['user_id']) == (3, 'again')
    assert shown['first_at'] == moments.text(before.created_at)
    # What was chosen is a decision each time.
    assert write(a, a) == 2
    # Another verdict, caller, host or instance is another decision.
    for other in (
        ('d', 'k', 'chosen', d[3], *d[4:]),
        ('d', 'k', 'NoValidHost', {**d[3], 'project_id': 'Q'}, *d[4:]),
        ('d', 'k', 'NoValidHost', {**d[3], 'instance_uuids': []}, *d[4:]),
        ('d', 'z', 'NoValidHost', d[3], *d[4:]),
        ('d', 'k', 'NoValidHost', d[3], None, 'b'),
        ('D', 'k', 'NoValidHost', d[3], *d[4:]),
        ('d', 'k', 'chosen', {'placements': [placed('x', 'b')]}),
    ):
        assert write(other) == 1, other
    asked = {'flavor': {'vcpus': 1}}
    for number in range(3):
        refused = {'error': REFUSAL, 'instance_uuids': [f'i-{number}']}
        sent = {**asked, 'instance_uuids': [f'i-{number}'], 'request_id': 'g'}
        for request in (sent, {**sent, 'flavor': {'vcpus': number}}):
            write(('g', 'k', 'NoValidHost', {**refused, 'request': request}))
    assert times_of(store, 'g') == [
        ('NoValidHost', 1), ('NoValidHost', 4), ('NoValidHost', 1),
    ]  # fmt: skip
    with store.reading() as conn:
        assert len(stored_decisions.show(conn, 'g')) == 3
        found = decision_list.search(conn, DecisionFilter(instance='i-2'))
    assert [row.times for row in found] == [1, 4]
    assert ('NoValidHost', 4) in times_of(store, 'd')
    assert len(times_of(store, 'd')) == 7


def test_no_repetition_is_lost_or_counted_twice_among_daemons(store):
    def write(_: int) -> None:
        made = [Decision(*each) for each in (*MADE, *reversed(MADE))]
        store.write(lambda w: stored_decisions.record(w, made))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(20)))
    for request_id in 'def':
        found = times_of(store, request_id)
        assert sum(times for _, times in found) == 40


def test_lists_of_decisions_read_no_document(store):
    made = [Decision(*each) for each in MADE]
    store.write(lambda writer: stored_decisions.record(writer, made))
    spoil = sa.update(schema.decisions).values(document='no JSON')
    store.write(lambda writer: writer.conn.execute(spoil))
    with store.reading() as conn:
        rows = decision_list.search(conn, DecisionFilter(), 4)
    assert [row.hosts for row in rows] == [
        ['a host-1 b'], [], [], ['host-1', 'Host-1'],
    ]  # fmt: skip
