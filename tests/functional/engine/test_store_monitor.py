"""How long a database that failed is left alone."""

import types

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.engine.health import Health
from scheduler_service.store.workers import store_monitor
from scheduler_service.store.workers.store_monitor import StoreMonitor

LOST = errors.StoreUnavailable('The disk of the database is full')
ENDED = errors.StoreUnavailable('The database does not answer: closed')


class Watched:
    """A monitor with a clock that the test moves, and a real database."""

    def __init__(self, store, monkeypatch):
        self.now = 1000.0
        clock = types.SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(store_monitor, 'time', clock)
        self.full = False
        self.health = Health(lambda: self.now)
        self.monitor = StoreMonitor(store, self.health, 0.5)
        self.consuming = True
        self.writes = 0
        self.monitor.pause = lambda: self.consume(False)
        self.monitor.resume = lambda: self.consume(True)
        sa.event.listen(store.engine, 'checkout', self._count_writes)

    def consume(self, value):
        self.consuming = value

    def _count_writes(self, raw, *about):
        self.writes += 1
        raw.execute(f'PRAGMA query_only = {int(self.full)}')

    def ask(self):
        """Have the engine report an answer; return whether it consumes."""
        try:
            self.monitor.answered(0)
        except errors.StoreUnavailable as error:
            self.monitor.lost(error)
        return self.consuming

    def seconds_until_consuming(self):
        """Move the clock until the bus consumes; return how long it took."""
        start = self.now
        while not self.ask():
            self.now += 0.25
        return self.now - start


@pytest.fixture
def watched(make_store, monkeypatch):
    return Watched(make_store(own=True), monkeypatch)


def test_pause_doubles_up_to_a_limit_when_claims_fail_again(watched):
    pauses = []
    for _ in range(7):
        watched.monitor.lost(LOST)
        assert not watched.consuming
        pauses.append(watched.seconds_until_consuming())
        watched.now += 1.0
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


def test_pause_is_short_again_when_the_database_was_well_for_long(watched):
    for _ in range(3):
        watched.monitor.lost(LOST)
        watched.seconds_until_consuming()
    watched.now += 61.0
    watched.monitor.lost(LOST)
    assert watched.seconds_until_consuming() == 0.0


def test_only_a_new_session_that_fails_too_means_a_lost_database(watched):
    monitor = watched.monitor
    for _ in range(3):
        assert monitor.only_session_lost(ENDED)
        assert watched.ask()
    assert monitor.only_session_lost(ENDED)
    assert not monitor.only_session_lost(ENDED)
    monitor.lost(ENDED)
    assert watched.seconds_until_consuming() == 0.0


def test_session_of_a_lost_database_is_not_opened_at_once(watched):
    watched.monitor.lost(ENDED)
    assert not watched.monitor.only_session_lost(ENDED)


def test_database_that_says_what_is_wrong_is_not_asked_at_once(watched):
    assert not watched.monitor.only_session_lost(LOST)


def test_database_is_written_to_ever_more_seldom_when_that_fails(watched):
    watched.full = True
    watched.monitor.lost(LOST)
    end = watched.now + 60.0
    while watched.now < end:
        assert not watched.ask()
        watched.now += 0.25
    # After 0, 1, 3, 7, 15, 23, 31, 39, 47 and 55 seconds.
    assert watched.writes == 10
    assert watched.health.degraded == [
        'database unreachable (The database is read-only: attempt to write a '
        'readonly database); retrying every 8 s'
    ]
    watched.full = False
    assert watched.seconds_until_consuming() <= 8.0
