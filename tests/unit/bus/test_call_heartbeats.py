"""Heartbeats go to callers that expect them, as long as they wait."""

import json
import math
import time
import weakref

import pytest

from scheduler_service.bus.replies import Publisher, Timers
from scheduler_service.bus.wire import Publication, Request
from scheduler_service.engine.health import Health


class Published(Publisher):
    """Keeps what is published, in place of a connection."""

    def __init__(self, timers: Timers, health: Health) -> None:
        super().__init__(health, timers, lambda name: None, 60.0)
        self.all: list[Publication] = []

    def put(self, publication: Publication) -> None:
        self.all.append(publication)


@pytest.fixture
def published(timers, health):
    return Published(timers, health)


@pytest.fixture
def health():
    return Health()


@pytest.fixture
def timers():
    return Timers()


def call(timeout, deadline=None):
    """Return a call with a heartbeat timeout."""
    made = Request(None, {}, {})
    made.msg_id, made.reply_q = 'm', 'reply_q'
    made.timeout, made.deadline = timeout, deadline
    return made


def at(seconds):
    return time.monotonic() + seconds


def test_a_heartbeat_ends_nothing(published, timers):
    request = call(60)
    published.watch(request)
    timers.run_due(at(31))
    (sent,) = published.all
    message = json.loads(json.loads(sent.body)['oslo.message'])
    assert (sent.destination, sent.repeated) == ('reply_q', False)
    assert message.pop('_unique_id')
    assert message == {
        'result': None, 'failure': None, 'ending': False, '_msg_id': 'm',
    }  # fmt: skip


def test_a_caller_gets_one_each_half_of_its_time_until_it_has_its_reply(
    published, timers
):
    request, before = call(60), time.monotonic()
    published.watch(request)
    assert before + 30 <= timers.next_due() <= time.monotonic() + 30
    timers.run_due(before + 29)
    assert published.all == []
    for count in (1, 2, 3):
        timers.run_due(at(31 * count))
        assert len(published.all) == count
    request.settled = True
    timers.run_due(at(31 * 4))
    assert len(published.all) == 3
    assert timers.next_due() == math.inf


@pytest.mark.parametrize('timeout', [None, 0, -1, 'x', [1]])
def test_a_caller_that_expects_none_gets_none(published, timers, timeout):
    published.watch(call(timeout))
    assert timers.next_due() == math.inf


def test_a_cast_gets_none(published, timers):
    request = call(60)
    request.msg_id = request.reply_q = None
    published.watch(request)
    timers.run_due(at(31))
    assert published.all == []


@pytest.mark.parametrize('timeout', [1e12, 1e300, math.inf, 10**400])
def test_a_time_that_is_too_long_delays_no_other(published, timers, timeout):
    long, other = call(timeout), call(60)
    published.watch(long)
    published.watch(other)
    timers.run_due(at(31))
    assert len(published.all) == 1


def test_a_caller_that_has_given_up_gets_none(published, timers):
    request = call(60, deadline=time.monotonic() - 1)
    published.watch(request)
    timers.run_due(at(31))
    assert published.all == []


def test_outcomes_are_counted(published, timers, health):
    request = call(60)
    published.watch(request)
    for count, accepted in enumerate((True, False, True), 1):
        timers.run_due(at(31 * count))
        published.all[-1].done(accepted)
    assert health.counters()['call_heartbeats'] == {'sent': 2, 'failed': 1}


def test_a_request_is_not_kept(published, timers):
    request = call(3600)
    kept = weakref.ref(request)
    published.watch(request)
    del request
    assert kept() is None
    timers.run_due(at(1801))
    assert published.all == []
