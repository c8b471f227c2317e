"""Databases that go back in time under a daemon: a restored backup."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.settings import EngineOptions
from scheduler_service.store import claims, schema
from scheduler_service.store.ports.host_source import StoreHostSource
from scheduler_service.store.writing import hosts as host_rows
from tests.support.databases import DATABASES, backup
from tests.support.documents import CONTEXT, SMALL
from tests.support.stores import (
    DEFAULT_RATIOS,
    assert_same_snapshot,
    import_two_hosts,
    load_snapshot,
    new_claim,
    sent,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.db


class Cache(StoreHostSource):
    """A daemon's view of a store; counts how often its history changed."""

    def __init__(self, store):
        super().__init__(
            store, EngineOptions(snapshot_max_age=60.0), self._count
        )
        self.changes = 0
        self.load()

    def _count(self):
        self.changes += 1

    def claim(self):
        """Claim as the engine does."""
        one = new_claim(self.snapshot, 64)
        with self.raw_connection() as conn:
            batch = claims.ClaimBatch(self.store, [one], DEFAULT_RATIOS)
            pending = sent(batch, conn)
            self.pending = pending
        pending.sent_at = 0.0
        self.advance(pending)

    def up_to_date(self):
        """Refresh, again where the database was not there for a moment."""

        def refreshed():
            try:
                return self.refresh()
            except errors.StoreUnavailable:
                return None

        return wait_until(refreshed)


def disable(store, host, times=1):
    for _ in range(times):
        store.write(lambda w: host_rows.set_status(w, host, False))


def enable(store, host, times=1):
    for _ in range(times):
        store.write(lambda w: host_rows.set_status(w, host, True))


def retried(call):
    """Call again while connections from before the restore end."""

    def attempt():
        try:
            call()
        except errors.StoreUnavailable:
            return False
        return True

    wait_until(attempt)


@pytest.fixture(params=DATABASES)
def store(request, make_store):
    """A store that is not restored."""
    return make_store(request.param)


def lineages(store):
    with store.reading() as conn:
        return list(
            conn.execute(sa.select(schema.changes.c.lineage)).scalars()
        )


def test_every_change_has_a_lineage_of_its_own(store):
    cache = Cache(store)
    import_two_hosts(store)
    cache.refresh()
    cache.claim()
    disable(store, 'compute-1', 2)
    assert len({*lineages(store)} - {''}) == 4
    cache.drop()


@pytest.mark.parametrize(
    ('database', 'overtaking'),
    [('sqlite', -1), ('sqlite', 0), ('sqlite', 1), ('postgresql', 0),
     ('mariadb', 0)],
)  # fmt: skip
def test_everything_is_loaded_when_the_database_went_back(
    make_store, database, overtaking
):
    """Revisions after the restore stay below, reach or pass the old ones."""
    store = make_store(database, own=True)
    import_two_hosts(store)
    restore = backup(store)
    enable(store, 'compute-2', 3)
    cache = Cache(store)
    restore()
    retried(lambda: disable(store, 'compute-1'))
    disable(store, 'compute-1', 2 + overtaking)
    assert_same_snapshot(cache.up_to_date(), load_snapshot(store))
    assert cache.changes == 1
    enable(store, 'compute-1')
    assert_same_snapshot(cache.refresh(), load_snapshot(store))
    assert cache.changes == 1
    cache.drop()


# A restore of PostgreSQL ends the connection, and with it what it hides.
@pytest.mark.parametrize('database', ['sqlite', 'mariadb'])
def test_everything_is_loaded_when_own_claims_hide_the_lost_changes(
    make_store, database
):
    """The claim after the restore follows the revision known before it."""
    store = make_store(database, own=True)
    import_two_hosts(store)
    cache = Cache(store)
    cache.claim()
    restore = backup(store)
    cache.claim()
    cache.claim()
    restore()
    disable(store, 'compute-2', 2)
    cache.claim()
    assert_same_snapshot(cache.up_to_date(), load_snapshot(store))
    assert cache.changes == 1
    cache.drop()


def test_own_claims_are_not_read_again_when_nobody_else_wrote(store):
    import_two_hosts(store)
    cache = Cache(store)
    for _ in range(3):
        cache.claim()
    before = cache.snapshot.hosts
    assert not cache.changed_by_others()
    assert cache.snapshot.hosts is before
    assert cache.changes == 0
    disable(store, 'compute-2')
    assert cache.changed_by_others()
    cache.drop()


@pytest.mark.parametrize('database', ['sqlite', 'postgresql'])
def test_disabled_hosts_are_not_chosen_when_a_backup_was_restored(
    make_service, database
):
    service = make_service(database=database)
    store = service.store

    def chosen(claim=True):
        answer = service.client.select_destinations(
            CONTEXT, {'flavor': SMALL}, claim=claim
        )
        return answer['placements'][0]['selected']['host']

    def history_changes():
        counters = service.client.ping(CONTEXT)['counters']
        return counters.get('database_history_changes', 0)

    restore = backup(store)
    for _ in range(5):
        chosen()
    revision = load_snapshot(store).revision
    used = service.daemon.scheduler.snapshot().hosts
    hosts = sorted({used.host_at(row) for row in range(len(used))})
    restore()
    for host in hosts[:-1]:
        retried(lambda host=host: disable(store, host))
    disable(store, hosts[0], revision)
    assert load_snapshot(store).revision > revision
    wait_until(lambda: history_changes() >= 1)
    # It may be seen after the first change; the later ones are read after it.
    # Claims would fill the host that is left.
    wait_until(lambda: {chosen(claim=False) for _ in range(8)} == {hosts[-1]})


def test_the_snapshot_is_read_again_at_once_when_connections_were_dropped(
    store,
):
    import_two_hosts(store)
    cache = Cache(store)
    # It takes long to bring it up to date, so that this is seldom done.
    cache._read_s = 60.0
    disable(store, 'compute-1')
    before = cache.snapshot.revision
    assert cache.current().revision == before
    cache.drop()
    assert_same_snapshot(cache.current(), load_snapshot(store))
    cache.drop()
