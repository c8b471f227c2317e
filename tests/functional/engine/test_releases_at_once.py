"""Releases in one round trip, and what the snapshot has of them then."""

from __future__ import annotations

import random
import threading
import time
import uuid

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import Change, ClaimsJob
from scheduler_service.engine.messages import DeliveredMessage
from scheduler_service.settings import EngineOptions
from scheduler_service.store import schema
from scheduler_service.store.claims import lifecycle
from scheduler_service.store.connection import Store
from scheduler_service.store.ports.claimer import StoreClaimer
from scheduler_service.store.ports.host_source import StoreHostSource
from scheduler_service.store.ports.recall import Outcomes
from scheduler_service.store.reading import change_feed
from tests.support.databases import listens
from tests.support.stores import (
    STRICT,
    assert_same_snapshot,
    audit_findings,
    claim_on,
    claim_state,
    import_inventory,
    is_waiting,
    load_snapshot,
    new_claim,
    used_memory,
    write_claims,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.db
GROUP = 'aaaaaaaa-0000-4000-8000-000000000001'


@pytest.fixture
def store(make_store) -> Store:
    """A store on PostgreSQL, with two hosts and a server group."""
    found: Store = make_store('postgresql')
    hosts = [
        {'host': name, 'vcpus': 64, 'memory_mb': 65536, 'local_gb': 100}
        for name in ('compute-1', 'compute-2')
    ]
    groups = [{'uuid': GROUP, 'policy': 'soft-affinity'}]
    import_inventory(found, {'hosts': hosts, 'server_groups': groups})
    return found


@pytest.fixture
def statements(store) -> list[str]:
    """The statements that travel one by one."""
    seen: list[str] = []

    @listens(store, 'before_cursor_execute')
    def look(conn, cursor, statement, *_):
        seen.append(statement)

    return seen


def release(*instances: str, project_id: str | None = None) -> ClaimsJob:
    def check(project_of) -> None:
        if set(project_of.values()) - {project_id}:
            raise errors.Forbidden('another project owns it')

    return ClaimsJob(
        change=Change.RELEASE,
        instances=instances,
        message=DeliveredMessage(id=str(uuid.uuid4())),
        check=check if project_id else None,
        project_id=project_id,
    )


def run(claimer: StoreClaimer, *jobs: ClaimsJob) -> list[list[str]]:
    claimer.send_changes(jobs)
    claimer.make_changes(jobs)
    return [job.future.result(0) for job in jobs]


def claims_of(store, count: int, **how) -> list[str]:
    snapshot = load_snapshot(store)
    made = [claim_on(snapshot, number % 2, **how) for number in range(count)]
    write_claims(store, *made, policies=STRICT)
    return [one.consumer for one in made]


def test_snapshot_has_what_was_released_without_reading_it(
    store, snapshots, claimer, statements
):
    held = claims_of(store, 6, project_id='p')
    held += claims_of(store, 2, group=GROUP, project_id='p')
    held += claims_of(store, 1, amounts={}, project_id='p')
    snapshots.load()
    statements.clear()
    jobs = [
        release(held[0], held[7], project_id='p'),
        release(held[3], str(uuid.uuid4()), project_id='p'),
        release(held[8]),
        release(),
    ]
    assert run(claimer, *jobs) == [
        sorted([held[0], held[7]]), [held[3]], [held[8]], [],
    ]  # fmt: skip
    snapshot = snapshots.current()
    assert statements == []
    assert snapshots.current_at > 0
    newest = load_snapshot(store)
    assert snapshot.hosts.instances.get(held[0]) is None
    for name in ('MEMORY_MB', 'VCPU'):
        assert (
            snapshot.hosts.resources[name].used.tolist()
            == newest.hosts.resources[name].used.tolist()
        )
    assert (
        snapshot.hosts.numbers['num_instances'].tolist()
        == newest.hosts.numbers['num_instances'].tolist()
    )
    assert snapshot.hosts.groups == newest.hosts.groups
    assert audit_findings(store) == []


def test_others_read_what_was_released(store, claimer):
    held = claims_of(store, 4, group=GROUP)
    before = load_snapshot(store)
    told: list[str] = []
    run(claimer, release(held[0], held[1]), release(held[2]))
    with store.reading() as conn:
        after = change_feed.refresh(conn, before, {}, told.extend)
    assert sorted(told) == sorted(held[:3])
    assert_same_snapshot(after, load_snapshot(store))


def test_move_is_released_with_its_instance(store, snapshots, claimer):
    [one] = claims_of(store, 1)
    store.write(lambda w: lifecycle.confirm(w, {one: 'compute-1'}))
    snapshot = load_snapshot(store)
    write_claims(store, claim_on(snapshot, 1, consumer=one, move=True))
    snapshots.load()
    assert run(claimer, release(one)) == [[one]]
    assert used_memory(store) == [0, 0]
    assert audit_findings(store) == []
    snapshots.refresh()
    assert_same_snapshot(snapshots.snapshot, load_snapshot(store))


@pytest.mark.parametrize('seed', range(2))
def test_claim_that_is_made_meanwhile_is_released_whole_or_stays(
    store, claimer, seed
):
    """The release waits for a lock, and the claim is committed before it."""
    dice = random.Random(seed)
    [first] = claims_of(store, 1)
    late = new_claim(load_snapshot(store), 1024)
    jobs = [release(first), release(late.consumer)]
    dice.shuffle(jobs)
    with store.engine.begin() as conn:
        lock = sa.select(schema.instances).with_for_update()
        conn.execute(lock)
        claimer.send_changes(jobs)
        wait_until(lambda: is_waiting(store))
        write_claims(store, late)
    claimer.make_changes(jobs)
    [stays] = [
        not job.future.result(0)
        for job in jobs
        if job.instances == (late.consumer,)
    ]
    assert claim_state(store, late.consumer) == ('claimed' if stays else None)
    assert used_memory(store) == [1024 if stays else 0, 0]
    assert audit_findings(store) == []


def test_releases_and_claims_of_two_daemons_leave_clean_books(store):
    """Each releases what the other one has just claimed, or is claiming."""
    names = [str(uuid.uuid4()) for _ in range(6)]
    snapshot = load_snapshot(store)
    end = time.monotonic() + 1
    faults: list[Exception] = []

    def claim(seed: int) -> None:
        dice = random.Random(seed)
        while time.monotonic() < end and not faults:
            wanted = claim_on(
                snapshot, dice.randrange(2), consumer=dice.choice(names)
            )
            try:
                write_claims(store, wanted)
            except Exception as fault:
                if type(fault).__name__ != 'ClaimLost':
                    faults.append(fault)

    def give_back(seed: int) -> None:
        dice = random.Random(seed)
        cache = StoreHostSource(
            store, EngineOptions(snapshot_max_age=60.0), lambda: None
        )
        mine = StoreClaimer(
            cache,
            Outcomes(store, EngineOptions(outcome_retention=3600.0), Health()),
        )
        try:
            while time.monotonic() < end and not faults:
                some = dice.sample(names, 3)
                run(mine, release(*some[:2]), release(some[2]))
        except Exception as fault:
            faults.append(fault)
        finally:
            cache.drop()

    threads = [
        threading.Thread(target=work, args=(seed,))
        for seed in range(2)
        for work in (claim, give_back)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert audit_findings(store) == []
