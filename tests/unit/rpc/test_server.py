"""The server on the bus inside a process: one message after the other."""

from __future__ import annotations

import queue
import time
import uuid
from concurrent.futures import Future

import pytest
from oslo_serialization import jsonutils

from scheduler_service.engine.futures import ReplyFuture, RequestReturned
from scheduler_service.engine.health import Health
from scheduler_service.engine.quarantine import Quarantine
from scheduler_service.rpc import inproc, transport
from scheduler_service.rpc.call_monitor import CallMonitor
from scheduler_service.rpc.redelivery import RedeliveryWorker
from scheduler_service.rpc.reply_publisher import ReplyPublisher
from scheduler_service.rpc.server import Dispatcher, Pending, new_server
from scheduler_service.store.connection import Store
from tests.support.services import new_conf
from tests.support.waiting import wait_until


class Endpoint:
    """Records what it was asked, and has the test give the results."""

    METHODS = frozenset(('ask',))

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.futures: dict[str, Future[str]] = {}
        self.undone: list[str] = []

    def ask(self, ctxt, args, incoming):
        name = args['name']
        self.futures[name] = ReplyFuture()
        self.asked.append(name)
        return Pending(self.futures[name], undo=self.undone.append)


class Bus:
    """A server, and what is sent to it."""

    def __init__(self, store: Store) -> None:
        health = Health()
        self.endpoint = Endpoint()
        self._name = uuid.uuid4().hex
        self._publisher = ReplyPublisher(health)
        self._worker = RedeliveryWorker(
            Quarantine(store, 1, health), self._publisher
        )
        self._bus = transport.for_server(new_conf(), f'inproc://{self._name}/')
        self._server = new_server(
            self._bus,
            transport.target('e', 't', 's'),
            Dispatcher([self.endpoint], '1.0'),
            self._publisher,
            self._worker,
            CallMonitor(health),
        )

    def __enter__(self):
        self._publisher.start()
        self._worker.start()
        self._server.start()
        return self

    def __exit__(self, *fault):
        for future in self.endpoint.futures.values():
            if not future.done():
                future.set_result('the end')
        self._server.stop()
        self._server.wait()
        self._worker.stop()
        self._publisher.stop(5)
        self._bus.cleanup()

    def send(self, name, redelivered=False, timeout=None):
        """Send a message of a name; return the queue that its reply is for."""
        replies = queue.Queue()
        text = jsonutils.dumps([{}, {'method': 'ask', 'args': {'name': name}}])
        sent = inproc.Envelope(name, text, replies, redelivered, timeout)
        inproc.broker(f'{self._name}/').put('e/t', sent)
        return replies

    def wait_for(self, *names):
        """Wait until the endpoint was asked these names and no others."""
        wait_until(lambda: len(self.endpoint.asked) >= len(names), 30)
        assert self.endpoint.asked == [*names]


@pytest.fixture
def bus(store):
    with Bus(store) as made:
        yield made


@pytest.fixture
def store(make_store):
    return make_store('sqlite')


def test_reply_is_sent_when_the_result_is_there(bus):
    replies = bus.send('a')
    bus.wait_for('a')
    assert replies.empty()
    bus.endpoint.futures['a'].set_result('done')
    assert replies.get(timeout=30) == ('"done"', None)
    assert bus.endpoint.undone == []


def test_fresh_messages_wait_for_no_other(bus):
    for name in 'abc':
        bus.send(name)
    bus.wait_for('a', 'b', 'c')


def test_redelivered_message_waits_when_another_is_under_way(bus):
    """Else the one that ends each daemon could not be told from others."""
    bus.send('a', redelivered=True)
    bus.send('b', redelivered=True)
    bus.wait_for('a')
    # Long enough for what should not be.
    time.sleep(0.2)
    bus.wait_for('a')
    bus.endpoint.futures['a'].set_result('done')
    bus.wait_for('a', 'b')


def test_message_comes_again_when_its_request_is_returned(bus):
    replies = bus.send('a')
    bus.wait_for('a')
    first = bus.endpoint.futures['a']
    first.set_exception(RequestReturned())
    bus.wait_for('a', 'a')
    assert replies.empty()
    bus.endpoint.futures['a'].set_result('again')
    assert replies.get(timeout=30) == ('"again"', None)


def test_result_is_undone_when_the_caller_has_left(bus):
    replies = bus.send('a', timeout=0.01)
    bus.wait_for('a')
    # The deadline is counted from the delivery, which is before this.
    time.sleep(0.1)
    bus.endpoint.futures['a'].set_result('claim')
    _, failure = replies.get(timeout=30)
    assert 'TooLate' in failure
    assert bus.endpoint.undone == ['claim']
