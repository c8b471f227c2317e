"""Batches that go in portions, with others faster at some of the places."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from scheduler_service.engine import claiming
from scheduler_service.store import audit, claims
from scheduler_service.store.connection import Store
from tests.functional.conftest import CONTEXT

FALLBACK = {'VCPU': 16.0, 'MEMORY_MB': 1.0, 'DISK_GB': 1.0}


def rival(store: Store, one: claims.Claim) -> None:
    """Take all memory that is left of a host, as another daemon would."""
    with store.reading() as conn:
        left = conn.exec_driver_sql(
            'SELECT total - used FROM inventories WHERE '
            f"resource_class = 'MEMORY_MB' AND host_id = {one.host_id}"
        ).scalar_one()
    taken = one._replace(
        consumer=str(uuid.uuid4()), amounts={'MEMORY_MB': left}
    )
    if left:
        store.write(lambda writer: claims.take(writer, [taken], FALLBACK))


@pytest.mark.parametrize(
    'database',
    ['sqlite', pytest.param('postgresql', marks=pytest.mark.db)],
)
@pytest.mark.parametrize('beaten', [1, 2])
def test_who_is_beaten_in_a_portion_is_chosen_for_again(
    make_service, monkeypatch, database, beaten
):
    """A host is gone under one of two portions; all else holds."""
    service = make_service(database=database, scheduler__batch_size=200)
    real, calls = claims.begin, []

    def begin(store: Store, conn: Any, wanted: Any, *more: Any) -> Any:
        calls.append(len(wanted))
        if len(calls) == beaten:
            rival(service.store, wanted[0])
        return real(store, conn, wanted, *more)

    monkeypatch.setattr(claiming.claims, 'begin', begin)
    asked = [{'flavor': {'memory_mb': 256}}] * 80
    asked.insert(10, {'flavor': {'memory_mb': 10**7}})
    answers = service.client.schedule_many(
        CONTEXT, [{'select_destinations': one} for one in asked]
    )
    # As many as fit a portion, and the rest; then those of the one beaten.
    assert calls[0] == 31
    assert len(calls) > 2
    refused = answers.pop(10)
    assert refused['error']['name'] == 'NoValidHost'
    uuids = {
        one['result']['placements'][0]['instance_uuid'] for one in answers
    }
    assert len(uuids) == 80
    with service.store.reading() as conn:
        held = conn.exec_driver_sql(
            'SELECT consumer_uuid FROM allocations WHERE amount = 256'
        )
        assert set(held.scalars()) == uuids
        assert audit.audit(conn, FALLBACK).findings == []


def test_a_portion_claimed_before_a_fault_is_answered(
    make_service, monkeypatch
):
    """What fails in the second portion does not fail the first."""
    service = make_service(scheduler__batch_size=200)
    desk = service.daemon.scheduler._hosts
    real, count = desk.choose, []

    def choose(*args: Any) -> Any:
        count.append(1)
        if len(count) == 50:
            raise RuntimeError('a fault in a test')
        return real(*args)

    monkeypatch.setattr(desk, 'choose', choose)
    one = {'select_destinations': {'flavor': {'memory_mb': 1}}}
    answers = service.client.schedule_many(CONTEXT, [one] * 80)
    assert sum('result' in one for one in answers) == 32
    names = {one['error']['name'] for one in answers if 'error' in one}
    assert names == {'SchedulerError'}
    with service.store.reading() as conn:
        held = conn.exec_driver_sql('SELECT count(*) FROM allocations')
        assert held.scalar_one() == 32
