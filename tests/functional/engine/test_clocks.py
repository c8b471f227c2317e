"""Daemons whose clocks differ from the database's, which is set."""

import contextlib
import time
import uuid
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from scheduler_service.store import clock, schema
from scheduler_service.store.reading import change_feed
from scheduler_service.store.records.leases import VALID_S, Lease
from tests.support.clocks import DatabaseClock
from tests.support.databases import DATABASES, connect
from tests.support.documents import CONTEXT, SMALL
from tests.support.engines import Message, select, start_engine
from tests.support.stores import claim_state, import_inventory, stored_host
from tests.support.waiting import SLOWNESS, wait_until

pytestmark = pytest.mark.db
_TIMEOUT_S = 2.0 * SLOWNESS
_HOUR_S = 3600.0


@contextlib.contextmanager
def clock_an_hour_ahead() -> Iterator[None]:
    """Let the clock of this process, not of any server, be an hour ahead."""
    real = time.time
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, 'time', lambda: real() + 3600.0)
        yield


@pytest.mark.parametrize('database', DATABASES)
def test_claims_expire_in_time_when_a_daemon_is_an_hour_ahead(
    make_service, database
):
    service = make_service(
        database=database, scheduler__claim_timeout=_TIMEOUT_S
    )

    def claim():
        answer = service.client.select_destinations(CONTEXT, {'flavor': SMALL})
        return answer['placements'][0]['instance_uuid']

    def states():
        return [claim_state(service.store, claim) for claim in claims]

    made = time.monotonic()
    claims = [claim()]
    with clock_an_hour_ahead():
        claims.append(claim())
        while (found := states()) and time.monotonic() - made < _TIMEOUT_S:
            assert found == ['claimed', 'claimed']
            time.sleep(0.1)
    wait_until(lambda: not any(states()))
    assert time.monotonic() - made > _TIMEOUT_S


@pytest.mark.parametrize('database', DATABASES)
def test_changes_are_kept_when_a_daemon_is_an_hour_ahead(make_store, database):
    store = make_store(database)
    import_inventory(store, {'hosts': [{'host': 'a', 'vcpus': 1}]})
    with clock_an_hour_ahead():
        import_inventory(store, {'hosts': [{'host': 'b', 'vcpus': 1}]})
        assert store.write(lambda w: change_feed.prune(w.conn, 60)) == 0
    with store.reading() as conn:
        stamps = conn.execute(sa.select(schema.changes.c.created_at)).scalars()
        now = clock.read(conn)
        assert all(now - 60 < stamp <= now for stamp in stamps)
    # The newest stays: readers know by it that nothing was written since.
    assert store.write(lambda w: change_feed.prune(w.conn, -60)) == 1


@pytest.fixture(params=DATABASES)
def stores(request, make_store):
    """Two stores on the same database, with hosts."""
    first = make_store(request.param, own=True)
    import_inventory(first)
    second = connect(first.engine.url.render_as_string(False))
    yield first, second
    second.dispose()


@pytest.fixture
def database_clock(stores):
    return DatabaseClock(*stores)


@pytest.fixture
def engines(stores, database_clock):
    """Two engines that expire claims and mark hosts down in short time."""
    options = {
        'scheduler__claim_timeout': _TIMEOUT_S,
        'scheduler__service_down_time': _TIMEOUT_S,
    }
    running = [start_engine(store, **options) for store in stores]
    yield running
    for engine in running:
        engine.stop()


def claimed(engine):
    """Return an instance that is claimed now."""
    asked = str(uuid.uuid4())
    assert 'placements' in select([asked]).run(engine)
    return asked


@pytest.mark.parametrize('seconds', [_HOUR_S, -_HOUR_S])
def test_claims_count_from_the_time_the_clock_was_set(
    engines, stores, database_clock, seconds
):
    before = claimed(engines[0])
    # Both have read the clock by then.
    time.sleep(_TIMEOUT_S / 2)
    database_clock.set_by(seconds)
    was_set = time.monotonic()
    after = claimed(engines[1])
    for claim in (before, after):
        wait_until(lambda one=claim: claim_state(stores[0], one) is None)
        assert time.monotonic() - was_set >= _TIMEOUT_S


def test_a_new_daemon_waits_since_the_clock_may_have_been_set(
    stores, database_clock
):
    options = {'scheduler__claim_timeout': _TIMEOUT_S}
    first = start_engine(stores[0], **options)
    before = claimed(first)
    first.stop()
    database_clock.set_by(_HOUR_S)
    started = time.monotonic()
    second = start_engine(stores[1], **options)
    wait_until(lambda: claim_state(stores[0], before) is None)
    second.stop()
    assert time.monotonic() - started >= _TIMEOUT_S


@pytest.mark.parametrize('seconds', [_HOUR_S, -_HOUR_S])
def test_hosts_that_send_heartbeats_stay_up_when_the_clock_is_set(
    engines, stores, database_clock, seconds
):
    writers = [engine.host_state_writer for engine in engines]

    def states():
        return [
            stored_host(stores[0], host).state
            for host in ('compute-1', 'compute-2')
        ]

    def beat(count):
        for number in range(count):
            writers[number % 2].heartbeat(['compute-1'])
            time.sleep(_TIMEOUT_S / 4)
            yield states()

    writers[0].heartbeat(['compute-2'])
    for found in beat(2):
        assert found == ['up', 'up']
    database_clock.set_by(seconds)
    for found in beat(2):
        assert found == ['up', 'up']
    assert [found for found in beat(11) if found[0] == 'down'] == []
    # It has sent nothing since the clock was set.
    assert states() == ['up', 'down']


def test_requests_after_a_release_are_placed_when_the_clock_is_set_back(
    engines, database_clock
):
    released = claimed(engines[0])
    assert Message('release', ([released],)).run(engines[0]) == [released]
    database_clock.set_by(-_HOUR_S)
    for engine in engines:
        assert 'placements' in select([released]).run(engine)
        assert Message('release', ([released],)).run(engine) == [released]
        database_clock.set_by(-_HOUR_S)


@pytest.mark.parametrize('seconds', [_HOUR_S, -_HOUR_S])
def test_leases_are_taken_over_soon_when_the_clock_is_set(
    stores, database_clock, seconds
):
    dead, next_one = (
        Lease(store, 'work', name)
        for store, name in zip(stores, 'ab', strict=True)
    )
    assert dead.take()
    assert not next_one.take()
    database_clock.set_by(seconds)
    wait_until(next_one.take, pause_s=0.2)


def test_a_lease_is_kept_by_its_holder_when_the_clock_is_set_back(
    stores, database_clock
):
    holder, other = (
        Lease(store, 'work', name)
        for store, name in zip(stores, 'ab', strict=True)
    )
    assert holder.take()
    database_clock.set_by(-_HOUR_S)
    end = time.monotonic() + VALID_S + 1
    while time.monotonic() < end:
        holder.keep()
        assert not other.take()
        time.sleep(0.3)
