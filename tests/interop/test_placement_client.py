"""The client of the placement service, and the claims that it makes."""

from __future__ import annotations

import urllib.error
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service.compute.placement import claims
from scheduler_service.compute.placement.claims import AllocationResult
from scheduler_service.engine.ports import Undone
from tests.support.placement_claims import (
    TAKEN,
    new,
    provider,
    record_of,
    wanted,
)
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.slow


def test_a_provider_as_the_service_has_it(service, placement_client):
    placement_client.check()
    made = new()
    service.add_provider(
        made, made, ['HW_CPU_X86_AVX2'], MEMORY_MB=100, DISK_GB=10,
        VCPU={'total': 10, 'reserved': 2, 'allocation_ratio': 4.0},
    )  # fmt: skip
    service.take(new(), made, VCPU=3)
    one = placement_client.provider(made)
    assert one.capacity == {'VCPU': 32, 'MEMORY_MB': 100, 'DISK_GB': 10}
    assert one.used['VCPU'] == 3
    assert one.traits == ['HW_CPU_X86_AVX2']
    assert placement_client.providers()[made] == one._replace(units=None)
    assert made in placement_client.provider_uuids()
    assert placement_client.provider(new()) is None


def test_many_claims_are_made_in_one_call(service, placement_client):
    on = [provider(service) for _ in range(3)]
    batch = [wanted(on[number % 3]) for number in range(9)]
    found = claims.make(placement_client, batch, set(), {})
    assert {*found.values()} == {AllocationResult.MADE}
    assert service.held(batch[0].consumer) == {on[0]: TAKEN}
    assert service.usages(on[0])['VCPU'] == 3


def test_a_misfit_does_not_keep_others_from_room(service, placement_client):
    wide, narrow = provider(service), provider(service, VCPU=1, MEMORY_MB=9)
    batch = [wanted(wide) for _ in range(6)]
    batch.insert(3, wanted(narrow))
    found = claims.make(placement_client, batch, set(), {})
    assert found.pop(batch[3].consumer) is AllocationResult.NO_CAPACITY
    assert {*found.values()} == {AllocationResult.MADE}
    assert service.held(batch[3].consumer) == {}


def test_a_provider_that_is_gone_has_no_room(placement_client):
    one = wanted(new())
    assert claims.make(placement_client, [one], set(), {}) == {
        one.consumer: AllocationResult.NO_CAPACITY
    }


def test_own_allocations_are_recognised_and_others_are_not(
    service, placement_client
):
    first, second = provider(service), provider(service)
    one = wanted(first)
    assert (
        claims.make(placement_client, [one], set(), {})[one.consumer]
        is AllocationResult.MADE
    )
    assert (
        claims.make(placement_client, [one], set(), {})[one.consumer]
        is AllocationResult.ALREADY_MADE
    )
    other = wanted(second, one.consumer)
    assert (
        claims.make(placement_client, [other], set(), {})[one.consumer]
        is AllocationResult.CONFLICT
    )
    assert service.held(one.consumer) == {first: TAKEN}


def test_a_consumer_that_a_crash_left_without_any_is_claimed_for(
    service, placement_client
):
    on = provider(service)
    one = wanted(on)
    claims.make(placement_client, [one], set(), {})
    # As if the service had died between its two transactions.
    url = service.database.replace('+psycopg2:', '+psycopg:')
    engine = sa.create_engine(url)
    with engine.begin() as conn:
        for statement in (
            'DELETE FROM allocations WHERE consumer_id = :uuid',
            'UPDATE consumers SET generation = 0 WHERE uuid = :uuid',
        ):
            conn.execute(sa.text(statement), {'uuid': one.consumer})
    engine.dispose()
    made = claims.make(placement_client, [one], set(), {})
    assert made == {one.consumer: AllocationResult.MADE}
    assert service.held(one.consumer) == {on: TAKEN}


def test_a_claim_stays_when_a_call_that_made_its_consumer_fails_later(
    service, placement_client
):
    """The service then deletes the consumer that the call made."""
    stuck, free = provider(service), provider(service)
    one = wanted(free)
    url = service.database.replace('+psycopg2:', '+psycopg:')
    database = sa.create_engine(url)
    with ThreadPoolExecutor() as beside:
        with database.begin() as conn:
            # It has made the consumer, and waits for its provider.
            conn.execute(
                sa.text('SELECT * FROM resource_providers WHERE uuid = :uuid '
                        'FOR UPDATE'),
                {'uuid': stuck},
            )  # fmt: skip
            slow = beside.submit(service.take, one.consumer, stuck, VCPU=1)
            wait_until(lambda: _consumers(database, one.consumer))
            found = claims.make(placement_client, [one], set(), {})
            assert found == {one.consumer: AllocationResult.MADE}
        with pytest.raises(urllib.error.HTTPError) as refused:
            slow.result(LIMIT_S)
        refused.value.close()
    database.dispose()
    assert service.held(one.consumer) == {free: TAKEN}
    assert service.usages(free) == TAKEN


def _consumers(database: sa.Engine, uuid: str) -> int:
    with database.connect() as conn:
        query = sa.text('SELECT count(*) FROM consumers WHERE uuid = :uuid')
        return int(conn.execute(query, {'uuid': uuid}).scalar_one())


def test_a_move_keeps_what_the_instance_has(service, placement_client):
    first, second = provider(service), provider(service)
    one = wanted(first)
    claims.make(placement_client, [one], set(), {})
    moved = wanted(second, one.consumer, keep_existing=True)
    assert (
        claims.make(placement_client, [moved], set(), {})[one.consumer]
        is AllocationResult.MADE
    )
    assert service.held(one.consumer) == {first: TAKEN, second: TAKEN}

    def undo(on: str, amounts: Any) -> Undone:
        unsure: set[str] = set()
        left = record_of(one.consumer, on, {on: amounts})
        undone = claims.undo(placement_client, left, unsure)
        assert not unsure
        return undone

    assert undo(second, TAKEN) is Undone.DONE
    assert service.held(one.consumer) == {first: TAKEN}
    assert undo(first, {'VCPU': 1}) is Undone.ABSENT
    assert undo(first, TAKEN) is Undone.DONE
    assert service.held(one.consumer) == {}
    assert undo(first, TAKEN) is Undone.ABSENT


def test_what_several_claims_left_is_undone_together(
    service, placement_client
):
    on, other = provider(service), provider(service)
    requests = [wanted(on) for _ in range(3)]
    claims.make(placement_client, requests, set(), {})
    moved = wanted(other, requests[0].consumer, keep_existing=True)
    claims.make(placement_client, [moved], set(), {})
    absent = new()
    consumers = [*(request.consumer for request in requests), absent]
    left = [record_of(uuid, on, {on: TAKEN}) for uuid in consumers]
    unsure: set[str] = set()
    undone = claims.undo_all(placement_client, left, unsure)
    assert undone == {
        **dict.fromkeys(consumers, Undone.DONE),
        absent: Undone.ABSENT,
    }
    assert not unsure
    assert service.usages(on)['VCPU'] == 0
    # What is not of these claims stays.
    assert service.held(consumers[0]) == {other: TAKEN}


def test_one_of_several_that_changes_meanwhile_stops_no_other(
    service, placement_client, monkeypatch
):
    on = provider(service)
    requests = [wanted(on) for _ in range(2)]
    claims.make(placement_client, requests, set(), {})
    changing = requests[0].consumer
    read = placement_client.allocations

    def read_and_change(consumer: str) -> dict[str, Any]:
        held = read(consumer)
        if consumer == changing:
            monkeypatch.setattr(placement_client, 'allocations', read)
            taken = {name: n + 1 for name, n in TAKEN.items()}
            service.take(changing, on, held['consumer_generation'], **taken)
        return dict(held)

    monkeypatch.setattr(placement_client, 'allocations', read_and_change)
    left = [
        record_of(request.consumer, on, {on: TAKEN}) for request in requests
    ]
    undone = claims.undo_all(placement_client, left, set())
    assert undone[requests[1].consumer] is Undone.DONE
    assert service.held(requests[1].consumer) == {}
    # It has something else by now, which is not ours.
    assert undone[changing] is Undone.ABSENT


def test_every_answer_of_the_service_has_the_version(
    service, placement_client
):
    """Answers without it are taken for those of something else."""
    assert placement_client.provider(new()) is None
    found = placement_client.allocation_candidates('resources=CUSTOM_NO:1')
    assert found['allocation_requests'] == []
    one = wanted(provider(service, VCPU=1))
    assert (
        placement_client.put_allocations(one.consumer, one.body).status == 409
    )
    one = wanted(new())
    assert (
        placement_client.put_allocations(one.consumer, one.body).status == 400
    )


def test_claims_of_several_daemons_at_once_are_all_made(
    service, placement_client
):
    on = provider(service, VCPU=100, MEMORY_MB=100_000, DISK_GB=100)
    batches = [[wanted(on) for _ in range(4)] for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        found = list(
            threads.map(
                lambda b: claims.make(placement_client, b, set(), {}), batches
            )
        )
    made = [
        uuid
        for one in found
        for uuid, outcome in one.items()
        if outcome is AllocationResult.MADE
    ]
    # A few may give up after several tries; none is half made.
    assert service.usages(on)['VCPU'] == len(made) >= 8
