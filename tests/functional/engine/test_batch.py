"""Batches that are claimed in portions, with others faster at some hosts."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

import msgspec
import pytest

from scheduler_service import errors
from scheduler_service.model import documents
from scheduler_service.store import claims
from scheduler_service.store.connection import Store
from scheduler_service.store.reading import change_feed
from tests.support.documents import CONTEXT
from tests.support.engines import store_all
from tests.support.services import hosts_of
from tests.support.stores import (
    DEFAULT_RATIOS,
    audit_findings,
    import_inventory,
)
from tests.support.waiting import LIMIT_S, wait_until

# Only PostgreSQL claims one portion while the next one is selected.
BOTH = pytest.mark.parametrize(
    'database', ['sqlite', pytest.param('postgresql', marks=pytest.mark.db)]
)


def rival(store: Store, one: claims.Claim) -> None:
    """Take all memory that is left of a host, as another daemon would."""
    with store.reading() as conn:
        left = conn.exec_driver_sql(
            'SELECT total - used FROM inventories WHERE '
            f"resource_class = 'MEMORY_MB' AND host_id = {one.host_id}"
        ).scalar_one()
    taken = msgspec.structs.replace(
        one, consumer=str(uuid.uuid4()), amounts={'MEMORY_MB': left}
    )
    if left:
        store.write(claims.ClaimBatch(store, [taken], DEFAULT_RATIOS).make)


def beat(monkeypatch: Any, store: Store, beaten: int) -> list[int]:
    """Have a rival be faster than a batch of claims at its first host.

    :param beaten: which batch, counted from 1
    :return: gets the size of each batch that is sent
    """
    real, calls = claims.ClaimBatch.send, []

    def begin(batch: Any, conn: Any) -> Any:
        calls.append(batch.instances)
        if len(calls) == beaten:
            rival(store, batch._claims[0])
        return real(batch, conn)

    monkeypatch.setattr(claims.ClaimBatch, 'send', begin)
    return calls


def counted(monkeypatch: Any, owner: Any, name: str) -> list[Any]:
    """Return a list that gets the arguments of each call of a function."""
    real, calls = getattr(owner, name), []

    def call(*args: Any) -> Any:
        calls.append(args)
        return real(*args)

    monkeypatch.setattr(owner, name, call)
    return calls


def schedule(service: Any, requests: list[Any]) -> list[Any]:
    """Send requests for hosts in one message; return their answers."""
    return service.client.schedule_many(
        CONTEXT, [{'select_destinations': one} for one in requests]
    )


def instances_of(answers: list[Any]) -> set[str]:
    """Return the first instance that each answer places."""
    return {
        answer['result']['placements'][0]['instance_uuid']
        for answer in answers
    }


def held(service: Any, amount: int) -> set[str]:
    """Return who holds an amount of anything."""
    with service.store.reading() as conn:
        found = conn.exec_driver_sql(
            f'SELECT consumer_uuid FROM allocations WHERE amount = {amount}'
        )
        return set(found.scalars())


@BOTH
@pytest.mark.parametrize('beaten', [1, 2])
def test_only_the_loser_is_scheduled_again_when_a_claim_is_lost(
    make_service, monkeypatch, database, beaten
):
    """A host is gone under one of two portions; all else holds."""
    service = make_service(database=database, scheduler__batch_size=200)
    calls = beat(monkeypatch, service.store, beaten)
    asked = [{'flavor': {'memory_mb': 256}}] * 80
    asked.insert(10, {'flavor': {'memory_mb': 10**7}})
    answers = schedule(service, asked)
    # As many as fit a portion, and the rest; then those of the one beaten.
    assert calls[0] == 31
    assert len(calls) > 2
    # Nobody loses twice: what the rival took is seen before they choose again.
    assert set(calls[beaten:-1]) == {1}
    refused = answers.pop(10)
    assert refused['error']['name'] == 'NoValidHost'
    uuids = instances_of(answers)
    assert len(uuids) == 80
    assert held(service, 256) == uuids
    assert audit_findings(service.store) == []


@BOTH
def test_all_are_refused_once_when_another_took_their_only_host(
    make_service, monkeypatch, database
):
    """The second portion was selected on the host before it was taken."""
    host = {'host': 'a', 'memory_mb': 32768, 'ram_allocation_ratio': 1.0}
    service = make_service(
        database=database,
        inventory={'hosts': [host]},
        scheduler__batch_size=200,
    )
    calls = beat(monkeypatch, service.store, 1)
    answers = schedule(service, [{'flavor': {'memory_mb': 256}}] * 80)
    assert {one['error']['name'] for one in answers} == {'NoValidHost'}
    # The portion that lost, and then each of its requests alone.
    assert calls == [32] + [1] * 32
    store_all(service.daemon.scheduler)
    counters = service.daemon.scheduler.health.counters()
    assert counters['requests'] == {'NoValidHost': 80}
    assert held(service, 256) == set()


@BOTH
@pytest.mark.parametrize('beaten', [1, 3])
def test_all_of_many_portions_are_answered_when_a_claim_is_lost(
    make_service, monkeypatch, database, beaten
):
    service = make_service(database=database, scheduler__batch_size=500)
    calls = beat(monkeypatch, service.store, beaten)
    answers = schedule(service, [{'flavor': {'memory_mb': 1}}] * 150)
    placed = instances_of(answers)
    assert len(calls) > 3
    assert len(placed) == 150
    assert held(service, 1) == placed
    store_all(service.daemon.scheduler)
    counters = service.daemon.scheduler.health.counters()
    assert counters['requests'] == {'chosen': 150}


@BOTH
def test_times_of_a_batch_are_measured_once(make_service, database):
    service = make_service(database=database)

    def measured(stage: str) -> tuple[float, ...]:
        found = service.daemon.scheduler.health.registry.get_sample_value
        name = 'scheduler_service_stage_duration_seconds'
        return tuple(
            found(f'{name}_{what}', {'stage': stage}) or 0
            for what in ('count', 'sum')
        )

    start = time.perf_counter()
    for number in (0, 1, 2):
        for stage in ('choose', 'claim'):
            assert measured(stage)[0] == number
        service.select_hosts()
    for stage in ('choose', 'claim'):
        assert 0 < measured(stage)[1] < time.perf_counter() - start


@BOTH
def test_an_instance_is_claimed_once_when_a_batch_names_it_twice(
    make_service, monkeypatch, database
):
    """The second request comes while the batch of the first still goes on."""
    service = make_service(database=database, scheduler__batch_size=200)
    real, claimed = claims.ClaimBatch.send, []

    def begin(batch: Any, conn: Any) -> Any:
        claimed.extend(claim.consumer for claim in batch._claims)
        return real(batch, conn)

    monkeypatch.setattr(claims.ClaimBatch, 'send', begin)
    uuids = [str(uuid.uuid4()) for _ in range(80)]
    uuids[70] = uuids[5]
    asked = [
        {'flavor': {'memory_mb': 1}, 'instance_uuids': [one]} for one in uuids
    ]
    answers = schedule(service, asked)
    placed = [answer['result']['placements'] for answer in answers]
    assert placed[70] == placed[5]
    assert sorted(claimed) == sorted(set(uuids))


def test_requests_that_claim_nothing_take_no_room_from_each_other(
    make_service,
):
    """They come while the first one is decided, so they share a batch."""
    service = make_service()
    asked = documents.request({'flavor': {'memory_mb': 8192}})
    answers = [
        service.daemon.scheduler.select_destinations(asked, claim=False)
        for _ in range(100)
    ]
    hosts = {
        answer.result(LIMIT_S).placements[0].selected.host
        for answer in answers
    }
    placed = service.client.select_destinations(
        CONTEXT, {'flavor': {'memory_mb': 8192}}
    )
    assert hosts & set(hosts_of(placed))
    assert len(held(service, 8192)) == 1


def test_a_request_is_answered_when_the_database_is_away_for_a_while(
    make_service, monkeypatch
):
    service = make_service()
    stage = service.daemon.scheduler._hosts.select
    real, tried = stage.run, []

    def run(jobs: Any, table: Any) -> None:
        tried.append(jobs)
        if len(tried) < 3:
            raise errors.StoreUnavailable('a fault in a test')
        real(jobs, table)

    monkeypatch.setattr(stage, 'run', run)
    assert len(service.select_hosts()) == 1
    assert len(tried) == 3


def test_nothing_is_promised_when_a_claim_is_lost_and_a_request_raises(
    make_service, monkeypatch
):
    """The first portion is beaten to a host, and the second one has a bug."""
    service = make_service(scheduler__batch_size=200)
    stage = service.daemon.scheduler._hosts.select
    real_run, real_send = stage.run, claims.ClaimBatch.send
    calls = []

    def run(jobs: Any, table: Any) -> None:
        if any(job.request.flavor.vcpus == 7 for job in jobs):
            raise RuntimeError('a fault in a test')
        real_run(jobs, table)

    def begin(batch: Any, conn: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            rival(service.store, batch._claims[0])
        return real_send(batch, conn)

    monkeypatch.setattr(stage, 'run', run)
    monkeypatch.setattr(claims.ClaimBatch, 'send', begin)
    asked: list[Any] = [{'flavor': {'memory_mb': 256}} for _ in range(80)]
    asked[49] = {'flavor': {'memory_mb': 256, 'vcpus': 7}}
    answers = schedule(service, asked)
    assert 'error' in answers.pop(49)
    uuids = instances_of(answers)
    assert len(uuids) == 79
    assert held(service, 256) == uuids
    assert audit_findings(service.store) == []


def test_a_refusal_is_decided_again_when_room_came_while_hosts_were_read(
    make_service, monkeypatch
):
    """The request came later than what it was decided on."""
    host = {'host': 'a', 'memory_mb': 512, 'ram_allocation_ratio': 1.0}
    service = make_service(inventory={'hosts': [host]})
    queue = service.daemon.scheduler._queue
    real, answers = change_feed.refresh, []

    def ask() -> None:
        answers.append(service.select_hosts(flavor={'memory_mb': 1024}))

    caller = threading.Thread(target=ask)

    def refresh(*about: Any) -> Any:
        read = real(*about)
        if not caller.ident:
            import_inventory(
                service.store, {'hosts': [host | {'memory_mb': 2048}]}
            )
            caller.start()
            wait_until(lambda: len(queue))
        return read

    monkeypatch.setattr(change_feed, 'refresh', refresh)
    wait_until(lambda: caller.ident)
    caller.join(LIMIT_S)
    assert answers == [['a']]


def test_a_refusal_beside_a_move_is_decided_again_when_room_came(make_service):
    """The move has the hosts read after the refusal was decided."""
    hosts = [
        {'host': name, 'memory_mb': 512, 'ram_allocation_ratio': 1.0}
        for name in ('a', 'b')
    ]
    service = make_service(inventory={'hosts': hosts})
    asked = {'flavor': {'memory_mb': 1}}
    placed = service.client.select_destinations(CONTEXT, asked)
    (moving,) = [one['instance_uuid'] for one in placed['placements']]
    scheduler = service.daemon.scheduler
    # No daemon reads what the other one writes, but for a refusal.
    scheduler._options.snapshot_max_age = 1000.0
    holding, both_sent = threading.Event(), threading.Event()

    def hold() -> None:
        holding.set()
        both_sent.wait()

    scheduler._loop.between_batches(hold)
    assert holding.wait(LIMIT_S)
    import_inventory(
        service.store, {'hosts': [hosts[0] | {'memory_mb': 2048}]}
    )
    move = documents.request({**asked, 'instance_uuids': [moving]})
    answers: list[Any] = [
        scheduler.select_destinations(
            documents.request({'flavor': {'memory_mb': 1024}})
        ),
        scheduler.select_destinations(move, move=True),
    ]
    both_sent.set()
    (answer,) = answers[0].result(LIMIT_S).placements
    assert answer.selected.host == 'a'
    assert answers[1].result(LIMIT_S).placements
