"""Deliveries on threads of their own: repeated, given up, waited for."""

from __future__ import annotations

import threading
import time

import oslo_messaging
import pytest

from scheduler_service.engine.health import Health
from scheduler_service.rpc import reply_publisher
from scheduler_service.rpc.reply_publisher import ReplyPublisher
from tests.support.waiting import wait_until


class Recorded:
    """A delivery that raises given errors first, then succeeds."""

    def __init__(
        self, *failures: Exception, destination: str | None = None
    ) -> None:
        self._failures = list(failures)
        self.destination = destination
        self.attempts = 0
        self.delivered = threading.Event()
        self.abandoned = threading.Event()
        self.acknowledged = threading.Event()

    def __call__(self) -> None:
        self.attempts += 1
        if self._failures:
            raise self._failures.pop(0)
        self.delivered.set()

    def acknowledge(self) -> None:
        self.acknowledged.set()

    def abandon(self) -> None:
        self.abandoned.set()


class Blocked(Recorded):
    """A delivery that hangs until it is released."""

    def __init__(self, destination: str | None = None) -> None:
        super().__init__(destination=destination)
        self.begun = threading.Event()
        self.released = threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        self.released.wait(30)
        super().__call__()


def missing_queue() -> Exception:
    return oslo_messaging.MessageUndeliverable(None, None, None, None)


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def publisher(health):
    made = ReplyPublisher(health)
    made.start()
    yield made
    made.stop(5)


def test_delivery_is_run_when_it_was_put(publisher):
    delivery = Recorded()
    publisher.put(delivery)
    assert delivery.delivered.wait(10)
    assert not delivery.abandoned.is_set()


def test_delivery_is_repeated_when_its_queue_is_missing(publisher):
    delivery = Recorded(missing_queue(), missing_queue())
    publisher.put(delivery)
    assert delivery.delivered.wait(10)
    assert delivery.attempts == 3


def test_delivery_is_abandoned_when_its_queue_stays_missing(
    publisher, monkeypatch, caplog
):
    monkeypatch.setattr(reply_publisher, '_GIVE_UP_S', 0.0)
    delivery = Recorded(*(missing_queue() for _ in range(99)))
    publisher.put(delivery)
    assert delivery.abandoned.wait(10)
    assert not delivery.delivered.is_set()
    assert 'was missing or full' in caplog.text


def test_delivery_is_abandoned_when_it_raises_anything_else(publisher, caplog):
    delivery = Recorded(ValueError('no such thing'))
    publisher.put(delivery)
    assert delivery.abandoned.wait(10)
    assert delivery.attempts == 1
    assert 'no such thing' in caplog.text


def test_others_are_delivered_when_one_is_repeated(publisher):
    repeated = Recorded(*(missing_queue() for _ in range(2)))
    publisher.put(repeated)
    others = [Recorded() for _ in range(20)]
    for one in others:
        publisher.put(one)
    assert all(one.delivered.wait(10) for one in others)
    assert not repeated.delivered.is_set()
    assert repeated.delivered.wait(10)


def test_one_reply_is_tried_when_many_wait_for_a_queue(publisher):
    """A queue that takes none costs one attempt now and then."""
    failures = [missing_queue() for _ in range(3)]
    first = Recorded(*failures, destination='full')
    publisher.put(first)
    wait_until(lambda: first.attempts)
    waiting = [Recorded(destination='full') for _ in range(30)]
    for one in waiting:
        publisher.put(one)
    other = Recorded(destination='other')
    publisher.put(other)
    assert other.delivered.wait(10)
    assert not any(one.attempts for one in waiting)
    # Once it takes replies, all of them are sent, in their order.
    assert first.delivered.wait(10)
    assert all(one.delivered.wait(10) for one in waiting)
    assert all(one.attempts == 1 for one in waiting)


def test_one_more_than_fit_into_a_line_is_abandoned(publisher, caplog):
    failures = [missing_queue() for _ in range(1000)]
    first = Recorded(*failures, destination='full')
    publisher.put(first)
    wait_until(lambda: first.attempts)
    more = [Recorded(destination='full') for _ in range(102)]
    for one in more:
        publisher.put(one)
    # The first of them is in its thread's hands, or in line with the others.
    assert more[-1].abandoned.wait(10)
    assert 'to queue full, 100 replies wait for it already' in caplog.text
    assert not more[0].abandoned.is_set()


class TwoSteps(Recorded):
    """A delivery with a step for one destination, then one for another."""

    def __init__(self, first: str, second: str, *failures: Exception) -> None:
        super().__init__(*failures, destination=first)
        self._second = second
        self.sent_first = False

    def __call__(self) -> None:
        if self.attempts and not self.sent_first:
            self.sent_first = True
            self.destination = self._second
        super().__call__()


def test_line_goes_on_when_the_next_step_of_a_reply_fails(publisher):
    """A reply leaves a line whose destination took it, for another line."""
    # Its first step fails once, its second one for long.
    failures = [missing_queue() for _ in range(6)]
    first = TwoSteps('full', 'missing', *failures)
    publisher.put(first)
    wait_until(lambda: first.attempts)
    waiting = [Recorded(destination='full') for _ in range(5)]
    for one in waiting:
        publisher.put(one)
    assert all(one.delivered.wait(10) for one in waiting)
    first._failures.clear()
    assert first.delivered.wait(10)
    assert first.sent_first
    assert publisher.stop(10)


class Overtaken(Recorded):
    """A delivery that another one follows, before its own attempt fails."""

    def __init__(self, publisher: ReplyPublisher, follower: Recorded) -> None:
        super().__init__(missing_queue(), destination='full')
        self._publisher = publisher
        self._follower = follower

    def __call__(self) -> None:
        if not self.attempts:
            self._publisher.put(self._follower)
        super().__call__()


def test_reply_is_tried_again_when_its_thread_hangs_in_another(publisher):
    """Whichever thread takes the reply that hangs, the other one goes on."""
    for _ in range(5):
        hanging = Blocked()
        waiting = Overtaken(publisher, hanging)
        publisher.put(waiting)
        tried_again = waiting.delivered.wait(10)
        hanging.released.set()
        assert tried_again
        assert hanging.delivered.wait(10)


def test_reply_is_tried_again_when_the_next_of_its_old_line_hangs(publisher):
    """A reply that changes its line leaves its thread to that line."""
    first = TwoSteps('full', 'missing', missing_queue(), missing_queue())
    publisher.put(first)
    wait_until(lambda: first.attempts)
    hanging = Blocked(destination='full')
    publisher.put(hanging)
    tried_again = first.delivered.wait(10)
    assert hanging.begun.is_set()
    hanging.released.set()
    assert tried_again


def test_as_many_messages_stay_unacknowledged_when_replies_wait_again(
    publisher,
):
    for _ in range(2):
        first = Recorded(
            *(missing_queue() for _ in range(99)), destination='full'
        )
        publisher.put(first)
        wait_until(lambda tried=first: tried.attempts)
        waiting = [Recorded(destination='full') for _ in range(40)]
        for one in waiting:
            publisher.put(one)
        held = [one for one in waiting if not one.acknowledged.is_set()]
        # One more is the first, which is tried now and then.
        assert len(held) in (15, 16)
        first._failures.clear()
        assert all(one.delivered.wait(10) for one in [first, *waiting])


class Retried(Blocked):
    """A delivery that fails once, and hangs when it is tried again."""

    def __call__(self) -> None:
        if self.attempts:
            super().__call__()
        else:
            self.attempts = 1
            raise missing_queue()


def test_few_messages_stay_unacknowledged_when_many_replies_wait(publisher):
    """The daemon goes on to take messages: its prefetch is not used up."""
    first = Retried(destination='full')
    publisher.put(first)
    # It is out of its line then, for which the others wait.
    assert first.begun.wait(10)
    waiting = [Recorded(destination='full') for _ in range(200)]
    for one in waiting:
        publisher.put(one)
    kept, dropped = waiting[:100], waiting[100:]
    assert all(one.abandoned.is_set() for one in dropped)
    assert not any(one.abandoned.is_set() for one in kept)
    held = [one for one in kept if not one.acknowledged.is_set()]
    assert held == kept[:16]
    first.released.set()
    assert all(one.delivered.wait(10) for one in kept)
    assert not any(one.attempts for one in dropped)


def test_stop_waits_until_everything_is_delivered(health):
    publisher = ReplyPublisher(health, threads=1)
    deliveries = [Recorded(missing_queue()), Recorded()]
    for delivery in deliveries:
        publisher.put(delivery)
    publisher.start()
    assert publisher.stop(10)
    assert all(delivery.delivered.is_set() for delivery in deliveries)


def test_stop_reports_what_is_left_when_the_time_is_over(health):
    publisher = ReplyPublisher(health, threads=1)
    delivery = Blocked()
    publisher.start()
    publisher.put(delivery)
    started = time.monotonic()
    assert not publisher.stop(0.2)
    assert time.monotonic() - started < 10
    delivery.released.set()


def test_health_is_degraded_when_a_delivery_hangs(
    health, publisher, monkeypatch
):
    monkeypatch.setattr(reply_publisher, '_STUCK_S', 0.0)
    delivery = Blocked()
    publisher.put(delivery)
    assert delivery.begun.wait(10)
    publisher.check_health()
    (degraded,) = health.degraded
    assert '1 are waiting' in degraded
    delivery.released.set()
    assert delivery.delivered.wait(10)
    assert publisher.stop(10)
    publisher.check_health()
    assert health.degraded == []


def test_health_is_not_degraded_when_a_delivery_has_just_begun(
    health, publisher
):
    delivery = Blocked()
    publisher.put(delivery)
    assert delivery.begun.wait(10)
    publisher.check_health()
    assert health.degraded == []
    delivery.released.set()


def test_a_line_is_tried_in_time_whichever_thread_hangs(publisher):
    for number in range(6):
        delivery = Recorded(missing_queue(), destination=f'queue-{number}')
        publisher.put(delivery)
        wait_until(lambda waiting=delivery: waiting.attempts == 1)
        # Taken by the thread that is to try the line again, or by the other.
        hanging = Blocked()
        publisher.put(hanging)
        try:
            assert hanging.begun.wait(10)
            assert delivery.delivered.wait(5)
        finally:
            hanging.released.set()
        assert hanging.delivered.wait(10)


def test_a_refused_reply_waits_in_line_at_once(publisher):
    """Its first attempt was made already, by the thread that put it."""
    refused = [Recorded(destination=f'gone-{one}') for one in range(200)]
    for one in refused:
        publisher.put(one, refused=True)
    assert not any(one.attempts for one in refused)
    # Only a few of them count against the prefetch.
    held = [one for one in refused if not one.acknowledged.is_set()]
    assert held == refused[:16]
    assert all(one.delivered.wait(10) for one in refused)
    assert all(one.attempts == 1 for one in refused)


def test_many_destinations_are_tried_more_rarely(health, monkeypatch):
    monkeypatch.setattr(reply_publisher, '_MAX_RETRIES_A_SECOND', 1)
    publisher = ReplyPublisher(health)
    publisher.start()
    few = Recorded(destination='gone-0')
    publisher.put(few, refused=True)
    more = [Recorded(destination=f'gone-{one}') for one in range(1, 60)]
    for one in more:
        publisher.put(one, refused=True)
    assert few.delivered.wait(10)
    assert not more[-1].delivered.wait(2)
    assert not more[-1].attempts


def test_new_replies_and_retries_take_turns(health):
    publisher = ReplyPublisher(health, threads=1)
    order: list[str] = []

    class Noted(Recorded):
        def __call__(self) -> None:
            order.append(self.destination)

    tried_again = [Noted(destination=f'again-{one}') for one in range(3)]
    for one in tried_again:
        publisher.put(one, refused=True)
    for _ in range(6):
        publisher.put(Noted(destination='new'))
    # By then all of the refused ones are due.
    time.sleep(0.4)
    publisher.start()
    assert publisher.stop(10)
    assert order == [
        'again-0', 'new', 'again-1', 'new', 'again-2', 'new', 'new', 'new',
        'new',
    ]  # fmt: skip
