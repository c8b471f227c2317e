"""Redelivered messages: one after the other, each counted."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from scheduler_service import errors
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import RequestReturned
from scheduler_service.rpc.delivery import RedeliveryWorker
from scheduler_service.rpc.reply_publisher import ReplyPublisher
from scheduler_service.store.ports.redeliveries import Quarantine


class Message:
    """A message of a bus, and the failure it was answered with."""

    def __init__(self, unique_id: str) -> None:
        self.unique_id = unique_id
        self.message = {'method': 'ping', 'args': {}}
        self.ctxt = {'user_id': 'u'}
        self.failures: list[object] = []
        self.acknowledged = threading.Event()
        self.requeued = threading.Event()
        self.unwanted = False

    def reply(self, result, failure) -> None:
        self.failures.append(failure[0])

    def acknowledge(self) -> None:
        self.acknowledged.set()

    def requeue(self) -> None:
        self.requeued.set()


@pytest.fixture
def worker(make_store):
    health = Health()
    publisher = ReplyPublisher(health)
    publisher.start()
    made = RedeliveryWorker(
        Quarantine(make_store('sqlite'), 1, health), publisher
    )
    made.start()
    yield made
    made.stop()
    publisher.stop(5)


def test_next_message_waits_when_one_is_under_way(worker):
    first: Future[None] = Future()
    begun, second = threading.Event(), threading.Event()

    def dispatch(message):
        begun.set()
        return first

    worker.put(Message('a'), dispatch)
    worker.put(Message('b'), lambda message: second.set())
    assert begun.wait(10)
    assert not second.wait(0.1)
    first.set_result(None)
    assert second.wait(10)


def test_message_is_refused_when_it_was_never_done_before(worker):
    def dispatch(message):
        raise RuntimeError('the daemon ends here')

    worker.put(Message('a'), dispatch)
    again = Message('a')
    dispatched: list[Message] = []
    worker.put(again, dispatched.append)
    assert again.acknowledged.wait(10)
    assert dispatched == []
    assert again.failures == [errors.RequestPutAside]


def test_message_is_dispatched_again_when_it_was_done_before(worker):
    done = threading.Event()
    worker.put(Message('a'), lambda message: None)
    worker.put(Message('a'), lambda message: done.set())
    assert done.wait(10)


def test_message_goes_back_to_its_queue_when_the_daemon_pauses(worker):
    message = Message('a')
    message.unwanted = True
    dispatched: list[Message] = []
    worker.put(message, dispatched.append)
    assert message.requeued.wait(10)
    assert dispatched == []


def test_message_is_not_refused_when_it_was_returned_before(worker):
    returned: Future[None] = Future()
    returned.set_exception(RequestReturned())
    done = threading.Event()
    for _ in range(3):
        worker.put(Message('a'), lambda message: returned)
    worker.put(Message('a'), lambda message: done.set())
    assert done.wait(10)


def test_work_ends_when_the_worker_stops(worker):
    """What comes later stays with the broker, for another daemon."""
    first: Future[None] = Future()
    begun, second = threading.Event(), threading.Event()
    threads = []

    def dispatch(message):
        threads.append(threading.current_thread())
        begun.set()
        return first

    worker.put(Message('a'), dispatch)
    assert begun.wait(10)
    worker.stop()
    worker.put(Message('b'), lambda message: second.set())
    first.set_result(None)
    (thread,) = threads
    thread.join(10)
    assert not thread.is_alive()
    assert not second.is_set()


def test_message_of_a_bus_that_knows_no_unwanted_ones_is_dispatched(worker):
    message, dispatched = Message('a'), threading.Event()
    del message.unwanted
    worker.put(message, lambda one: dispatched.set())
    assert dispatched.wait(30)
    assert not message.requeued.is_set()
