"""Redelivered messages: one after the other, each counted."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from scheduler_service import errors
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import RequestReturned
from scheduler_service.rpc.delivery import RedeliveryWorker
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

    def requeue(self) -> None:
        self.requeued.set()


@pytest.fixture
def worker(make_store):
    made = RedeliveryWorker(Quarantine(make_store('sqlite'), 1, Health()))
    made.start()
    yield made
    made.stop()


def finished(_=None):
    """Return a future that is done."""
    future: Future[None] = Future()
    future.set_result(None)
    return future


def refuse(message, error):
    """Refuse a message, as a server does."""
    message.failures.append(type(error))
    message.acknowledged.set()


def test_message_is_refused_when_it_was_never_done_before(worker):
    def dispatch(message):
        raise RuntimeError('the daemon ends here')

    worker.put(Message('a'), dispatch, refuse)
    again = Message('a')
    dispatched: list[Message] = []
    worker.put(again, dispatched.append, refuse)
    assert again.acknowledged.wait(10)
    assert dispatched == []
    assert again.failures == [errors.RequestPutAside]


def test_message_is_dispatched_again_when_it_was_done_before(worker):
    done = threading.Event()
    worker.put(Message('a'), finished, refuse)
    worker.put(Message('a'), lambda message: finished(done.set()), refuse)
    assert done.wait(10)


def test_message_goes_back_to_its_queue_when_the_daemon_pauses(worker):
    message = Message('a')
    message.unwanted = True
    dispatched: list[Message] = []
    worker.put(message, dispatched.append, refuse)
    assert message.requeued.wait(10)
    assert dispatched == []


def test_message_is_not_refused_when_it_was_returned_before(worker):
    returned: Future[None] = Future()
    returned.set_exception(RequestReturned())
    done = threading.Event()
    for _ in range(3):
        worker.put(Message('a'), lambda message: returned, refuse)
    worker.put(Message('a'), lambda message: finished(done.set()), refuse)
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

    worker.put(Message('a'), dispatch, refuse)
    assert begun.wait(10)
    worker.stop()
    worker.put(Message('b'), lambda message: finished(second.set()), refuse)
    first.set_result(None)
    (thread,) = threads
    thread.join(10)
    assert not thread.is_alive()
    assert not second.is_set()
