"""Requests for what an aggregate offers once for all its hosts."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service.scheduler import Scheduler
from scheduler_service.store.connection import Store
from tests.support.engines import release, select, start_engine
from tests.support.stores import (
    HOSTS,
    assert_same_snapshot,
    audit_findings,
    import_inventory,
    load_snapshot,
)

CAD = 'CUSTOM_LICENCE_CAD'
FLAVOR = {
    'vcpus': 1,
    'memory_mb': 512,
    'extra_specs': {f'resources:{CAD}': '1'},
}
# The first two hosts have the licences, the third has none.
CLOUD: dict[str, Any] = {
    'hosts': [
        {'host': name, 'vcpus': 64, 'memory_mb': 65536, 'local_gb': 100}
        for name in HOSTS
    ],
    'aggregates': [
        {'id': 7, 'name': 'cad', 'hosts': [*HOSTS[:2]],
         'resources': {CAD: {'total': 5}}},
    ],
}  # fmt: skip


@pytest.fixture(
    params=['sqlite', pytest.param('postgresql', marks=pytest.mark.db)]
)
def store(request, make_store) -> Store:
    found: Store = make_store(request.param)
    import_inventory(found, CLOUD)
    return found


@pytest.fixture
def start(store) -> Iterator[Callable[[], Scheduler]]:
    """Give a function that starts an engine on the store."""
    engines: list[Scheduler] = []

    def begin() -> Scheduler:
        engines.append(start_engine(store))
        return engines[-1]

    yield begin
    for engine in engines:
        engine.stop()


def new(count: int = 1) -> list[str]:
    return [str(uuid.uuid4()) for _ in range(count)]


def ask(uuids: Sequence[str], **how: Any) -> Any:
    return select(
        uuids, **{'flavor': FLAVOR, 'num_instances': len(uuids), **how}
    )


def hosts(answer: Any) -> list[str]:
    return [one.selected.host for one in answer.placements]


def used(store: Store) -> list[int]:
    found: list[int] = load_snapshot(store).hosts.resources[CAD].used.tolist()
    return found


def test_hosts_of_an_aggregate_take_from_one_amount(store, start):
    engine, three = start(), new(3)
    placed = hosts(ask(three).deliver(engine).result())
    assert {*placed} <= {*HOSTS[:2]}
    refused = ask(new(3)).deliver(engine).exception()
    assert isinstance(refused, errors.NoValidHost)
    assert '2 of 3 instances would have found one' in str(refused)
    assert (
        f'resources alone keeps out 3 (1 {CAD} asked, 5 of 5 {CAD} of '
        'aggregate cad are used)' in str(refused)
    )
    release(three[0]).run(engine)
    hosts(ask(new(3)).deliver(engine).result())
    assert used(store) == [5, 5, 0]
    assert_same_snapshot(engine._source.refresh(), load_snapshot(store))
    assert audit_findings(store) == []


def test_no_licence_is_promised_twice_by_two_daemons(store, start):
    """In batches, and at once."""
    engines = [start(), start()]
    futures = [
        ask(new()).deliver(engine) for _ in range(5) for engine in engines
    ]
    refused = [one for one in futures if one.exception()]
    assert len(refused) == 5
    assert used(store) == [5, 5, 0]
    assert audit_findings(store) == []


def test_an_instance_keeps_its_licence_when_it_moves(store, start):
    """All are used; the third host has none."""
    engine, five = start(), new(5)
    (was, *_) = hosts(ask(five).deliver(engine).result())
    moved = ask(five[:1], move=True).deliver(engine).result()
    (now,) = hosts(moved)
    assert {was, now} == {*HOSTS[:2]}
    assert used(store) == [5, 5, 0]
    release(five[0]).run(engine)
    assert used(store) == [4, 4, 0]
    assert audit_findings(store) == []
