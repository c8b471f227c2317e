"""Heartbeats go to callers that want them, as long as they wait."""

from __future__ import annotations

import gc
import math
import time

import pytest

from scheduler_service.engine.health import Health
from scheduler_service.rpc import call_monitor
from scheduler_service.rpc.call_monitor import CallMonitor
from scheduler_service.rpc.rabbit import deadline_of
from tests.support.waiting import wait_until


class Message:
    """A message that counts its heartbeats."""

    def __init__(self, timeout, deadline=None, fails=False):
        self.client_timeout = timeout
        self.deadline = deadline
        self.settled = False
        self.fails = fails
        self.beats = 0

    def heartbeat(self):
        self.beats += 1
        if self.fails:
            raise RuntimeError('no such queue')


@pytest.fixture
def health():
    return Health()


@pytest.fixture
def monitor(health, monkeypatch):
    monkeypatch.setattr(call_monitor, '_SHORTEST_S', 0.01)
    made = CallMonitor(health)
    made.start()
    yield made
    made.stop()


def test_a_caller_gets_one_each_half_of_its_time_until_it_has_its_reply(
    monitor, health
):
    message = Message(0.04)
    monitor.watch(message)
    wait_until(lambda: message.beats >= 3)
    message.settled = True
    beats = message.beats
    time.sleep(0.1)
    assert message.beats <= beats + 1
    assert health.counters()['call_heartbeats']['sent'] == message.beats


@pytest.mark.parametrize('timeout', [None, 0, -1, 'x'])
def test_a_caller_that_does_not_ask_gets_none(monitor, timeout):
    message, other = Message(timeout), Message(0.02)
    monitor.watch(message)
    monitor.watch(other)
    wait_until(lambda: other.beats >= 3)
    assert message.beats == 0


@pytest.mark.parametrize('timeout', [1e12, 1e300, math.inf, 10**400])
def test_a_time_that_is_too_long_keeps_no_other_from_its_heartbeats(
    monitor, timeout
):
    monitor.watch(Message(timeout))
    # The thread waits for the first one before there is another.
    time.sleep(0.05)
    other = Message(0.02)
    monitor.watch(other)
    wait_until(lambda: other.beats >= 3)


def test_a_caller_that_has_left_gets_none(monitor):
    message, other = Message(0.02, time.monotonic() - 1), Message(0.02)
    monitor.watch(message)
    monitor.watch(other)
    wait_until(lambda: other.beats >= 3)
    assert message.beats == 0


def test_one_that_cannot_be_sent_is_counted_and_the_next_one_tried(
    monitor, health
):
    message = Message(0.02, fails=True)
    monitor.watch(message)
    wait_until(lambda: message.beats >= 2)
    assert health.counters()['call_heartbeats']['failed'] >= 2


def test_a_message_that_nobody_has_any_more_is_not_kept(monitor):
    held = [Message(0.02)]
    monitor.watch(held[0])
    wait_until(lambda: held[0].beats)
    held.clear()
    wait_until(lambda: not monitor._due)
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, Message)]


def test_a_sooner_one_goes_before_a_later_one(monitor):
    later, sooner = Message(3600), Message(0.02)
    monitor.watch(later)
    monitor.watch(sooner)
    wait_until(lambda: sooner.beats)
    assert later.beats == 0


@pytest.mark.parametrize('text', [None, '', 'x', '9' * 400])
def test_a_message_without_an_expiration_has_no_deadline(text):
    assert deadline_of({'expiration': text}) is None
    assert deadline_of(None) is None


def test_the_deadline_is_the_expiration_after_the_delivery():
    left = deadline_of({'expiration': '1800000'}) - time.monotonic()
    assert 1799 < left <= 1800


def test_a_message_that_comes_again_has_no_more_time_than_when_it_was_sent():
    minute = {'expiration': '60000'}
    left = deadline_of(minute, time.time() - 50) - time.monotonic()
    assert 9 < left <= 10
    assert deadline_of(minute, time.time() - 61) < time.monotonic()
    # The clock of a caller may be ahead.
    left = deadline_of(minute, time.time() + 1000) - time.monotonic()
    assert 59 < left <= 60
    assert deadline_of({}, time.time()) is None
