"""Daemons whose clocks differ from the database's."""

import contextlib
import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from scheduler_service.store import clock, schema
from scheduler_service.store.reading import change_feed
from tests.support.databases import DATABASES
from tests.support.documents import CONTEXT, SMALL
from tests.support.stores import claim_state, import_inventory
from tests.support.waiting import wait_until

pytestmark = pytest.mark.db
_TIMEOUT_S = 2.0


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

    made = time.monotonic()
    claims = [claim()]
    with clock_an_hour_ahead():
        claims.append(claim())
        while time.monotonic() - made < _TIMEOUT_S / 2:
            states = [claim_state(service.store, claim) for claim in claims]
            assert states == ['claimed', 'claimed']
            time.sleep(0.1)
    wait_until(
        lambda: not any(claim_state(service.store, claim) for claim in claims)
    )
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
