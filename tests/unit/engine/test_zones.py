"""ZoneStages on SQLite: a zone's row is its claim."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from scheduler_service import conf as options
from scheduler_service import errors, plugins
from scheduler_service.cmd import adapters
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import ZoneJob
from scheduler_service.engine.journal import Journal
from scheduler_service.engine.ports import Parts
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.engine.zones import ZoneStages
from scheduler_service.filters.pools import PoolFilter
from scheduler_service.model import Pool, documents
from scheduler_service.pipeline import PoolPipeline
from scheduler_service.request_context import RequestContext
from scheduler_service.settings import EngineOptions, Settings
from scheduler_service.store.connection import Store
from scheduler_service.store.ports.claimer import StoreClaimer
from scheduler_service.store.ports.host_source import StoreHostSource
from scheduler_service.store.ports.recall import Outcomes
from scheduler_service.store.records import decision_list, decisions
from scheduler_service.store.records.decision_list import DecisionFilter
from scheduler_service.store.workers.decision_recorder import DecisionRecorder
from scheduler_service.store.writing import zones

GOLD = '11111111-0000-4000-8000-000000000001'
SILVER = '11111111-0000-4000-8000-000000000002'
INVENTORY = {
    'pools': [
        {'id': GOLD, 'name': 'gold', 'attributes': {'level': 'gold'}},
        {'id': SILVER, 'name': 'silver', 'attributes': {'level': 'silver'}},
    ]
}
ZONE = '22222222-0000-4000-8000-000000000001'
WANTS_GOLD = {'level': 'gold'}
WANTS_SILVER = {'level': 'silver'}


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def recorder(store: Store) -> DecisionRecorder:
    """A recorder whose thread does not run: a test flushes it itself."""
    return DecisionRecorder(store, EngineOptions(decisions_kept=1000))


@pytest.fixture
def make_scheduler(store, import_inventory, recorder, health):
    """Give a function that makes a scheduler with some pool filters."""
    import_inventory(INVENTORY)
    caches = []

    def make(
        filters: list[type[PoolFilter]] | None = None,
    ) -> ZoneStages:
        caches.append(
            StoreHostSource(
                store, EngineOptions(snapshot_max_age=0.2), lambda: None
            )
        )
        outcomes = Outcomes(
            store, EngineOptions(outcome_retention=3600.0), health
        )
        parts = Parts(
            caches[-1],
            StoreClaimer(caches[-1], outcomes),
            recorder.record,
            health,
            RequestQueue(10),
            random.Random(1),
            Journal(),
        )
        filters = filters or plugins.pool_filters(['attribute'])
        return ZoneStages(parts, PoolPipeline(filters, Settings()))

    yield make
    for cache in caches:
        cache.drop()


@pytest.fixture
def make_job() -> Callable[..., ZoneJob]:
    """Give a function that makes a job for a zone."""
    conf = adapters.new_config()
    options.parse(conf, [], default_config_files=[], default_config_dirs=[])
    member = {'project_id': 'p', 'roles': ['member']}

    def make(
        keep: bool = True,
        explain: bool = False,
        pools: dict[str, Pool] | None = None,
        caller: dict[str, Any] | None = None,
        **zone: Any,
    ) -> ZoneJob:
        document = {'name': 'a.example.', 'project_id': 'p', **zone}
        return ZoneJob(
            request=documents.zone(document, named=keep).with_ids(),
            caller=RequestContext.of(conf, caller or member),
            keep=keep,
            explain=explain,
            pools=pools,
        )

    return make


def stored(store: Store) -> dict[str, str]:
    """Return name of a zone -> id of its pool."""
    with store.reading() as conn:
        return {row.name: row.pool_id for row in zones.listing(conn)}


def test_a_job_that_is_not_to_be_stored_says_what_would_happen(
    store, make_scheduler, make_job
):
    job = make_job(keep=False, explain=True, attributes=WANTS_GOLD)
    make_scheduler().decide([job])
    reply = job.future.result(0)
    assert reply.pool_id == GOLD
    assert reply.explanation == {
        'pools': 2,
        'funnel': [{'filter': 'attribute', 'left': 1, 'pools': ['gold']}],
    }
    assert stored(store) == {}


@pytest.mark.parametrize('zone_id', [None, ZONE])
@pytest.mark.parametrize('filters', [['attribute'], ['attribute', 'random']])
def test_a_stored_pool_is_refused_where_new_attributes_rule_it_out(
    store, make_scheduler, make_job, filters, zone_id
):
    scheduler = make_scheduler(plugins.pool_filters(filters))
    first = make_job(id=zone_id, attributes=WANTS_GOLD)
    again = make_job(id=zone_id, attributes=WANTS_SILVER)
    same = make_job(id=zone_id, attributes=WANTS_GOLD)
    for job in (first, again, same):
        scheduler.decide([job])
    error = again.future.exception(0)
    assert isinstance(error, errors.Conflict)
    assert error.facts == {
        'zone_id': first.request.id, 'pool_id': GOLD, 'filter': 'attribute',
    }  # fmt: skip
    assert same.future.result(0).pool_id == GOLD
    assert stored(store) == {'a.example.': GOLD}


def test_a_stored_pool_stays_where_filters_or_pools_changed(
    make_scheduler, make_job
):
    first = make_job(attributes=WANTS_GOLD)
    make_scheduler().decide([first])
    # Whatever the attributes, this chooses a pool that is not in the store.
    changed = make_scheduler(plugins.pool_filters(['default_pool']))
    again = make_job(attributes=WANTS_SILVER)
    changed.decide([again])
    assert again.future.result(0).pool_id == GOLD


def test_another_pool_that_is_named_does_not_replace_the_stored_one(
    make_scheduler, make_job
):
    make = plugins.pool_filters(['attribute', 'pool_id_attribute'])
    scheduler = make_scheduler(make)
    scheduler.decide([make_job(attributes=WANTS_GOLD)])
    admin = {'project_id': 'p', 'roles': ['admin']}
    for roles, expected in (
        (admin, errors.Conflict),
        (None, errors.Forbidden),
    ):
        job = make_job(caller=roles, attributes={'pool_id': SILVER})
        scheduler.decide([job])
        assert isinstance(job.future.exception(0), expected)


def sent(*names: str) -> dict[str, Pool]:
    """Return candidates by id: pools that the store does not have."""
    return documents.candidates(
        [
            {'id': str(uuid.uuid5(uuid.NAMESPACE_DNS, name)), 'name': name,
             'attributes': {'level': name}}
            for name in names
        ]
    )  # fmt: skip


def test_candidates_that_come_along_are_chosen_from_and_nothing_is_stored(
    store, make_scheduler, make_job, recorder
):
    pools = sent('gold', 'iron')
    wants_iron = {'level': 'iron'}
    job = make_job(False, pools=pools, name=None, attributes=wants_iron)
    make_scheduler().decide([job])
    assert job.future.result(0).pool_name == 'iron'
    assert stored(store) == {}
    recorder.flush()
    with store.reading() as conn:
        (decision,) = decisions.show(conn, job.request.request_id)
    assert decision['outcome'] == 'chosen'


@pytest.mark.parametrize(
    ('pools', 'filters', 'expected'),
    [
        ({}, ['attribute'], errors.NoValidPoolFound),
        (sent('iron'), ['attribute'], errors.NoValidPoolFound),
        (sent('iron'), ['default_pool'], errors.NoValidPoolFound),
        (sent('iron', 'lead'), ['random', 'fallback'], None),
        (sent('iron', 'lead'), ['fallback'], errors.MultiplePoolsFound),
    ],
)
def test_no_pool_is_chosen_that_is_not_a_candidate(
    make_scheduler, make_job, pools, filters, expected
):
    wanted = WANTS_GOLD if filters == ['attribute'] else {}
    job = make_job(False, pools=pools, attributes=wanted)
    make_scheduler(plugins.pool_filters(filters)).decide([job])
    if expected is None:
        assert job.future.result(0).pool_id in pools
    else:
        assert type(job.future.exception(0)) is expected


def test_a_zone_named_twice_in_a_batch_gets_one_pool(
    store, make_scheduler, make_job
):
    zone_id = str(uuid.uuid4())
    jobs = [
        make_job(id=zone_id, attributes=wanted) for wanted in (WANTS_GOLD, {})
    ]
    make_scheduler().decide(jobs)
    assert [job.future.result(0).pool_id for job in jobs] == [GOLD, GOLD]
    assert stored(store) == {'a.example.': GOLD}


def test_another_daemon_that_was_first_wins(store, make_scheduler, make_job):
    zone_id = str(uuid.uuid4())
    row = zones.ZoneRow(zone_id, 'a.example.', SILVER, 'p', None)

    class SlowFilter(PoolFilter):
        """Lets another daemon store the zone while this one chooses."""

        def filter(self, context, pools, zone):
            if not stored(store):
                store.write(lambda writer: zones.add(writer, [row]))
            return [pool for pool in pools if pool.id == GOLD]

    jobs = [make_job(id=zone_id), make_job(name='b.example.')]
    make_scheduler([SlowFilter]).decide(jobs)
    assert [job.future.result(0).pool_id for job in jobs] == [SILVER, GOLD]
    assert stored(store) == {'a.example.': SILVER, 'b.example.': GOLD}


def test_a_refusal_concerns_no_other_job(
    store, make_scheduler, make_job, health
):
    refused = make_job(name='a.', attributes={'level': 'lead'})
    chosen = make_job(name='b.', attributes=WANTS_SILVER)
    make_scheduler().decide([refused, chosen])
    assert isinstance(refused.future.exception(0), errors.NoValidPoolFound)
    assert chosen.future.result(0).pool_id == SILVER
    assert stored(store) == {'b.': SILVER}
    assert health.counters() == {
        'requests': {'NoValidPoolFound': 1, 'zone chosen': 1}
    }


def test_decisions_are_recorded_with_their_reasons(
    store, make_scheduler, make_job, recorder
):
    jobs = [
        make_job(name='a.', attributes=WANTS_GOLD, request_id='req-1'),
        make_job(name='b.', attributes={'level': '?'}, request_id='req-2'),
        make_job(name='c.', request_id='req-3', keep=False),
    ]
    make_scheduler().decide(jobs)
    recorder.flush()
    with store.reading() as conn:
        listed = {
            one.request_id: one.outcome
            for one in decision_list.search(conn, DecisionFilter())
        }
        (decision,) = decisions.show(conn, 'req-1')
    assert listed == {'req-1': 'chosen', 'req-2': 'NoValidPoolFound'}
    assert decision['pool_name'] == 'gold'
    assert decision['zone'] == 'a.'
