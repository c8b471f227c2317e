"""Claims and releases of the same instance, ordered by the counter.

Each is stopped at the counter, after everything else that it writes, while
the other one comes there, too. Whichever is committed second has to see the
first. SQLite has one writer at a time, so neither can miss the other.
"""

import time
from collections.abc import Callable, Iterator
from concurrent import futures
from uuid import uuid4

import pytest

from scheduler_service import errors
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import HostJob
from scheduler_service.engine.messages import DeliveredMessage
from scheduler_service.engine.ports import ClaimLost
from scheduler_service.model import documents
from scheduler_service.scheduler import Scheduler
from scheduler_service.settings import EngineOptions
from scheduler_service.store import claims
from scheduler_service.store.claims import lifecycle, outcomes
from scheduler_service.store.claims.outcomes import ReleaseRequest
from scheduler_service.store.connection import REVISION, Store, lock_counter
from scheduler_service.store.ports.recall import Outcomes
from tests.support import engines
from tests.support.databases import listens, waiting
from tests.support.documents import SMALL
from tests.support.stores import (
    DEFAULT_RATIOS,
    audit_findings,
    claim_on,
    claim_state,
    import_two_hosts,
    move_of,
    used_memory,
    write_claims,
)
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.db

OWNER = 'owner'


@pytest.fixture(params=['postgresql', 'postgresql at once', 'mariadb'])
def how(request):
    """A kind of database, and whether a round trip is all that it takes."""
    return request.param.partition(' ')


@pytest.fixture
def store(how, make_store) -> Store:
    """A store of that kind."""
    found: Store = make_store(how[0])
    return found


@pytest.fixture
def snapshot(store):
    """Two hosts, before any claim or release."""
    return import_two_hosts(store)


@pytest.fixture
def in_order(store) -> Iterator[Callable[..., list[futures.Future]]]:
    """Give a function that has calls come to the counter in their order."""
    with futures.ThreadPoolExecutor(2) as threads:

        def run(*calls):
            with store.engine.begin() as holder:
                lock_counter(holder, REVISION)
                done = []
                for count, call in enumerate(calls, 1):
                    done.append(threads.submit(call))
                    wait_until(lambda n=count: waiting(store) >= n)
            futures.wait(done, timeout=LIMIT_S)
            return done

        yield run


def claim(store: Store, wanted: claims.Claim, at_once: bool) -> None:
    if at_once:
        write_claims(store, wanted)
    else:
        store.write(claims.ClaimBatch(store, [wanted], DEFAULT_RATIOS).make)


def release(
    store: Store, uuid: str, at_once: bool, project_id: str | None = OWNER
) -> list[str]:
    """Release for a project, as a daemon does."""
    asked = {uuid: ReleaseRequest(project_id=project_id)}
    if at_once:
        from scheduler_service.store.claims.pg_claims import PendingRelease

        with store.hold() as held:
            conn = held.execution_options(isolation_level='AUTOCOMMIT')
            pending = PendingRelease(store, conn, asked, {uuid: None}, [])
            pending.finish()
            released = pending.wait()
        if released is not None:
            return released.consumers
    return store.write(lambda w: lifecycle.cancel(w, asked))


def test_a_release_sees_the_claim_that_came_to_the_counter_first(
    store, how, snapshot, in_order
):
    wanted = claim_on(snapshot, 0, project_id=OWNER)
    at_once = bool(how[2])
    claimed, released = in_order(
        lambda: claim(store, wanted, at_once),
        lambda: release(store, wanted.consumer, at_once),
    )
    assert claimed.exception() is None
    assert set(released.result()) == {wanted.consumer}
    assert claim_state(store, wanted.consumer) is None
    assert used_memory(store) == [0, 0]
    assert audit_findings(store) == []


@pytest.mark.parametrize('project', [OWNER, 'another', None])
def test_a_claim_sees_the_release_that_came_to_the_counter_first(
    store, how, snapshot, in_order, project
):
    """Releases for other projects do not concern it."""
    wanted = claim_on(
        snapshot, 0, project_id=project, releases_seen=snapshot.revision
    )
    at_once = bool(how[2])
    released, claimed = in_order(
        lambda: release(store, wanted.consumer, at_once),
        lambda: claim(store, wanted, at_once),
    )
    assert released.result() == []
    lost = isinstance(claimed.exception(), ClaimLost)
    assert lost is (project == OWNER)
    state = claim_state(store, wanted.consumer)
    assert state == (None if lost else 'claimed')
    assert audit_findings(store) == []
    if lost:
        with store.reading() as conn:
            (one,) = outcomes.releases(conn, [wanted.consumer], OWNER)
        # Once its request is compared with that release it is made.
        again = claim_on(
            snapshot,
            0,
            consumer=wanted.consumer,
            project_id=OWNER,
            releases_seen=one.revision,
        )
        claim(store, again, at_once)


@pytest.fixture
def move(store, snapshot):
    """The move of an instance that is placed, not claimed yet."""
    placed = claim_on(snapshot, 0)
    seen = write_claims(store, placed)
    return move_of(snapshot, placed.consumer, releases_seen=seen)


def drop(store: Store, move: claims.Claim) -> list[str]:
    asked = {move.consumer: ReleaseRequest()}
    kind = outcomes.MOVE
    return store.write(lambda w: lifecycle.cancel(w, asked, kind=kind))


def moves_to(store: Store, uuid: str) -> object:
    with store.reading() as conn:
        return claims.placements(conn, [uuid], True).get(uuid)


def test_a_dropped_move_is_not_made_afterwards(store, move, in_order):
    dropped, moved = in_order(
        lambda: drop(store, move), lambda: write_claims(store, move)
    )
    assert dropped.result() == []
    assert isinstance(moved.exception(), ClaimLost)
    assert moves_to(store, move.consumer) is None
    assert used_memory(store) == [1024, 0]


def test_a_move_that_comes_first_is_dropped(store, move, in_order):
    moved, dropped = in_order(
        lambda: write_claims(store, move), lambda: drop(store, move)
    )
    assert moved.exception() is None
    assert dropped.result() == [move.consumer]
    assert used_memory(store) == [1024, 0]


@pytest.fixture
def daemons(store, snapshot) -> Iterator[list[Scheduler]]:
    """Two engines."""
    running = [engines.start_engine(store) for _ in range(2)]
    yield running
    for engine in running:
        engine.stop()


def test_a_request_is_cancelled_that_meets_its_release(
    store, daemons, in_order
):
    """By another daemon, which has not read of the release at that time."""
    uuid = str(uuid4())
    released, selected = in_order(
        lambda: engines.release(uuid).run(daemons[0]),
        lambda: engines.select([uuid]).run(daemons[1]),
    )
    assert released.result() == []
    assert selected.result() == {'error': 'RequestCancelled'}
    assert claim_state(store, uuid) is None


def slow_look(store: Store, event: str) -> None:
    """Have it take long to read releases, before or after they are read."""

    @listens(store, event)
    def look(conn, cursor, statement, *_):
        if 'FROM releases' in statement:
            time.sleep(0.1)


def test_a_request_is_cancelled_though_it_takes_long_to_read_releases(
    store, snapshot
):
    """The release came after it, by less time than that."""
    uuid = str(uuid4())
    asked = documents.request({'flavor': SMALL, 'instance_uuids': [uuid]})
    job = HostJob(request=asked, message=DeliveredMessage('m'))
    release(store, uuid, at_once=False, project_id=None)
    slow_look(store, 'before_cursor_execute')
    with store.reading() as conn, pytest.raises(errors.RequestCancelled):
        Outcomes(
            store, EngineOptions(outcome_retention=60.0), Health()
        ).recall(conn, job)


def test_a_request_that_follows_a_release_at_once_is_not_cancelled(
    store, daemons
):
    """Both wait in the same daemon."""
    slow_look(store, 'after_cursor_execute')
    uuid = str(uuid4())
    released = engines.release(uuid).deliver(daemons[0])
    selected = engines.select([uuid]).deliver(daemons[0])
    assert released.result(LIMIT_S) == []
    assert selected.result(LIMIT_S).placements
    assert claim_state(store, uuid) == 'claimed'
