"""Jobs that change claims, together in one transaction and one by one."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import Change, ClaimsJob
from scheduler_service.engine.messages import DeliveredMessage
from scheduler_service.settings import EngineOptions
from scheduler_service.store import schema
from scheduler_service.store.claims import claim_queries
from scheduler_service.store.claims.lifecycle import OwnerCheck
from scheduler_service.store.connection import Store
from scheduler_service.store.ports.claimer import StoreClaimer
from scheduler_service.store.ports.host_source import StoreHostSource
from scheduler_service.store.ports.recall import Outcomes
from scheduler_service.store.sessions import Timeouts
from tests.support.databases import DATABASES
from tests.support.stores import (
    audit_findings,
    claim_on,
    import_two_hosts,
    load_snapshot,
    move_of,
    used_memory,
    write_claims,
)

pytestmark = pytest.mark.db


@pytest.fixture(params=DATABASES)
def store(request, make_store) -> Store:
    """A store with its tables and nothing in them, on each database."""
    found: Store = make_store(request.param)
    return found


@pytest.fixture
def held(store) -> list[str]:
    """Claims of 1,024 MB each on the first host."""
    snapshot = import_two_hosts(store)
    made = [claim_on(snapshot, 0, project_id='owner') for _ in range(4)]
    write_claims(store, *made)
    return [one.consumer for one in made]


def run(claimer: StoreClaimer, jobs: Sequence[ClaimsJob]) -> None:
    """Run jobs as the engine does: it decides others in between."""
    claimer.send_changes(jobs)
    claimer.make_changes(jobs)


def message(sent_at: float | None = None) -> DeliveredMessage:
    return DeliveredMessage(id=str(uuid.uuid4()), sent_at=sent_at)


def release(
    instances: Sequence[str],
    came_with: DeliveredMessage | None = None,
    check: OwnerCheck | None = None,
) -> ClaimsJob:
    return ClaimsJob(
        change=Change.RELEASE,
        instances=instances,
        message=came_with or message(),
        check=check,
    )


def result(job: ClaimsJob) -> Any:
    assert job.done()
    return job.future.result()


def refuse(project_of: Any) -> None:
    """Forbid whatever belongs to somebody."""
    if any(project_of.values()):
        raise errors.Forbidden('another project owns it')


def revision(store) -> int:
    return load_snapshot(store).revision


def test_releases_share_one_transaction_and_keep_their_own_results(
    store, claimer, held
):
    before = revision(store)
    unknown = str(uuid.uuid4())
    jobs = [release([held[1], held[0]]), release([held[2], unknown])]
    run(claimer, [*jobs, release([unknown.upper()])])
    assert result(jobs[0]) == sorted(held[:2])
    assert result(jobs[1]) == [held[2]]
    assert revision(store) == before + 1
    assert used_memory(store) == [1024, 0]
    assert audit_findings(store) == []


def test_different_changes_share_one_transaction(store, claimer, held):
    snapshot = load_snapshot(store)
    write_claims(store, move_of(snapshot, held[2]))
    before = revision(store)
    drop = ClaimsJob(
        change=Change.DROP_MOVES, instances=[held[2]], message=message()
    )
    confirm = ClaimsJob(
        change=Change.CONFIRM, instances=[held[1]], message=message()
    )
    run(claimer, [drop, confirm])
    assert result(drop) == [held[2]]
    assert result(confirm) == [held[1]]
    assert revision(store) == before + 1
    assert used_memory(store) == [4096, 0]
    with store.reading() as conn:
        shown = claim_queries.show(conn, held[1])
    assert shown['state'] == 'confirmed'


def test_one_forbidden_release_takes_no_other_with_it(store, claimer, held):
    forbidden = release([held[0]], check=refuse)
    allowed = release([held[1]], check=lambda _: None)
    unchecked = release([held[2]])
    run(claimer, [forbidden, allowed, unchecked])
    with pytest.raises(errors.Forbidden):
        result(forbidden)
    assert result(allowed) == [held[1]]
    assert result(unchecked) == [held[2]]
    assert used_memory(store) == [2048, 0]


def test_a_check_sees_the_instances_of_its_own_job_alone(claimer, held):
    seen: list[dict[str, str | None]] = []
    jobs = [
        release([held[0]], check=lambda found: seen.append(dict(found))),
        release([held[1]]),
    ]
    run(claimer, jobs)
    assert seen == [{held[0]: 'owner'}]


def test_redelivered_copies_get_the_first_results(store, claimer, held):
    first = [release([held[0]]), release([held[1]])]
    run(claimer, first)
    again = [release(job.instances, redelivered(job)) for job in first]
    run(claimer, [*again, release([held[2]])])
    assert [result(job) for job in again] == [[held[0]], [held[1]]]
    assert used_memory(store) == [1024, 0]


def redelivered(job: ClaimsJob) -> DeliveredMessage:
    return DeliveredMessage(id=job.message.id, redelivered=True)


def test_a_copy_that_came_second_gets_the_first_result(store, claimer, held):
    """It is not marked as redelivered: another daemon has the first."""
    first = release([held[0]])
    run(claimer, [first])
    copy = release([held[0]], DeliveredMessage(id=first.message.id))
    other = release([held[1]])
    run(claimer, [copy, other])
    assert result(copy) == [held[0]]
    assert result(other) == [held[1]]


@pytest.mark.parametrize('kind', ['postgresql', 'mariadb'])
def test_one_that_waits_for_a_lock_holds_no_other_up(kind, make_store):
    """The first of them; it goes on where the lock is given back."""
    timeouts = Timeouts(lock=1.0)
    url = make_store(kind).engine.url.render_as_string(hide_password=False)
    store = Store.connect(url, timeouts=timeouts)
    held = [
        claim_on(import_two_hosts(store), 0, project_id='owner')
        for _ in range(3)
    ]
    write_claims(store, *held)
    snapshots = StoreHostSource(
        store, EngineOptions(snapshot_max_age=60.0), lambda: None
    )
    claimer = StoreClaimer(
        snapshots,
        Outcomes(store, EngineOptions(outcome_retention=3600.0), Health()),
    )
    jobs = [release([one.consumer]) for one in held]
    table = schema.instances
    with store.engine.begin() as other:
        mine = table.c.uuid == held[0].consumer
        other.execute(sa.select(table).where(mine).with_for_update())
        with pytest.raises(errors.StoreTimeout):
            run(claimer, jobs)
    assert [job.done() for job in jobs] == [False, True, True]
    run(claimer, jobs)
    assert [result(job) for job in jobs] == [[one.consumer] for one in held]
    assert used_memory(store) == [0, 0]
    snapshots.drop()
    store.dispose()
