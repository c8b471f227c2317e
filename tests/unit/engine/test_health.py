"""Health: what is degraded, and the lines about it."""

from __future__ import annotations

import logging

import pytest

from scheduler_service import errors
from scheduler_service.engine.health import Health
from tests.support.clocks import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock, caplog: pytest.LogCaptureFixture) -> Health:
    caplog.set_level(logging.INFO)
    return Health(clock)


class TestDegradations:
    def test_degraded_lists_texts_until_they_recover(self, health):
        health.degrade('queue', 'too many requests')
        health.degrade('broker', 'broker unreachable')
        assert health.degraded == ['broker unreachable', 'too many requests']
        health.recover('broker')
        health.recover('never degraded')
        assert health.degraded == ['too many requests']

    def test_each_change_is_logged_once(self, health, clock, caplog):
        health.degrade('broker', 'broker unreachable', 'Broker back')
        health.log_changes()
        health.log_changes()
        clock.now += 12.0
        health.recover('broker', '5 replies were waiting')
        health.log_changes()
        health.log_changes()
        assert caplog.messages == [
            'Degraded: broker unreachable',
            'Broker back after 12 s; 5 replies were waiting',
        ]

    def test_one_recovers_while_another_lasts(self, health, clock, caplog):
        health.degrade('broker', 'broker unreachable', 'Broker back')
        health.degrade('queue', 'too many requests')
        health.log_changes()
        clock.now += 3.0
        health.recover('broker')
        health.log_changes()
        assert caplog.messages[2:] == ['Broker back after 3 s']

    def test_what_lasts_is_logged_again_every_30_s(
        self, health, clock, caplog
    ):
        health.degrade('broker', 'broker unreachable')
        for _ in range(70):
            health.log_changes()
            clock.now += 1.0
        assert caplog.messages == [
            'Degraded: broker unreachable',
            'Still degraded after 30 s: broker unreachable',
            'Still degraded after 60 s: broker unreachable',
        ]

    def test_what_recovers_before_it_was_logged_is_not_logged(
        self, health, caplog
    ):
        health.degrade('queue', 'too many requests')
        health.recover('queue')
        health.log_changes()
        assert caplog.messages == []

    def test_what_comes_back_at_once_has_not_recovered(
        self, health, clock, caplog
    ):
        health.degrade('queue', '600 requests', 'Queue short again')
        health.log_changes()
        clock.now += 2.0
        health.recover('queue')
        health.degrade('queue', '700 requests', 'Queue short again')
        health.log_changes()
        clock.now += 2.0
        health.recover('queue')
        health.log_changes()
        assert caplog.messages == [
            'Degraded: 600 requests',
            'Queue short again after 4 s',
        ]

    def test_a_cause_without_a_sentence_is_named(self, health, clock, caplog):
        health.degrade('disk', 'disk full')
        health.log_changes()
        clock.now += 1.0
        health.recover('disk')
        health.log_changes()
        assert caplog.messages[1] == 'Recovered: disk, after 1 s'


class TestDatabase:
    def test_its_loss_and_its_return_are_logged_at_once(
        self, health, clock, caplog
    ):
        error = errors.StoreUnavailable(
            'The database does not answer: connection refused'
        )
        health.database_failed(error, 0.5)
        health.database_failed(error, 0.5)
        assert not health.database_reachable
        clock.now += 12.0
        health.database_answered(3)
        health.database_answered(0)
        health.log_changes()
        assert health.database_reachable
        assert caplog.record_tuples == [
            (
                'scheduler_service.engine.health',
                logging.ERROR,
                'Degraded: database unreachable (connection refused); '
                'retrying every 0.5 s',
            ),
            (
                'scheduler_service.engine.health',
                logging.WARNING,
                'Database reachable again after 12 s; 3 requests were waiting',
            ),
        ]
        assert health.counters() == {'database_lost': 1}

    @pytest.mark.parametrize(
        ('waiting', 'ending'), [(0, ''), (1, '; 1 request was waiting')]
    )
    def test_requests_that_waited_are_counted(
        self, health, caplog, waiting, ending
    ):
        health.database_failed(errors.StoreUnavailable(), 1.0)
        health.database_answered(waiting)
        assert caplog.messages == [
            'Degraded: database unreachable; retrying every 1 s',
            f'Database reachable again after 0 s{ending}',
        ]

    def test_locks_are_held_until_it_answers(self, health, caplog):
        error = errors.StoreTimeout('The database takes too long: locked')
        health.database_timed_out(error)
        health.database_timed_out(error)
        assert health.degraded == ['The database takes too long: locked']
        assert health.database_reachable
        health.database_answered(0)
        health.log_changes()
        assert caplog.messages == [
            'Degraded: The database takes too long: locked',
            'Locks in the database are free again after 0 s',
        ]
        assert health.counters() == {'database_timeouts': 2}


class TestThresholds:
    def test_a_queue_more_than_half_full_is_degraded(self, health):
        health.check_queue(500, 1000)
        assert health.degraded == []
        health.check_queue(501, 1000)
        assert health.degraded == [
            '501 requests are queued, at most 1000 are accepted'
        ]
        health.check_queue(0, 1000)
        assert health.degraded == []

    def test_a_batch_that_takes_more_than_a_second_is_degraded(self, health):
        health.check_batch(1.0)
        assert health.degraded == []
        health.check_batch(1.25)
        assert health.degraded == ['the last batch of requests took 1.2 s']
        health.check_batch(0.1)
        assert health.degraded == []

    def test_a_slow_batch_counts_for_30_s_when_none_follows(
        self, health, clock, caplog
    ):
        health.check_batch(1.6)
        health.log_changes()
        clock.now += 29
        health.log_changes()
        assert health.degraded == ['the last batch of requests took 1.6 s']
        clock.now += 1
        caplog.clear()
        health.log_changes()
        assert health.degraded == []
        assert caplog.messages == [
            'No batch takes more than 1 s any more after 30 s; nothing was '
            'measured since'
        ]
