"""The server on the bus inside a process: one message after the other."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from scheduler_service.engine.health import Health
from scheduler_service.engine.messages import ReplyFuture, RequestReturned
from scheduler_service.rpc import transport
from scheduler_service.rpc.delivery import ReplyForm
from scheduler_service.rpc.server import Dispatcher, Pending, Server
from scheduler_service.settings import EngineOptions
from scheduler_service.store.connection import Store
from scheduler_service.store.ports.quarantine import Quarantine
from scheduler_service.store.ports.recall import Outcomes
from scheduler_service.tracing import Tracer
from tests.support import inproc_calls
from tests.support.collector import collector
from tests.support.services import new_conf
from tests.support.waiting import LIMIT_S, wait_until

SAMPLED = {
    'traceparent': '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
}


class Endpoint:
    """Records what it was asked, and has the test give the results."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.futures: dict[str, Future[str]] = {}
        self.undone: list[str] = []
        self.contexts: list[dict[str, str]] = []

    def ask(self, incoming):
        name = incoming.args['name']
        self.contexts.append(incoming.ctxt)
        self.futures[name] = ReplyFuture()
        self.asked.append(name)
        return Pending(self.futures[name], ReplyForm(undo=self.undone.append))

    def _hidden(self, incoming):
        raise AssertionError


class Bus:
    """A server, and what is sent to it."""

    def __init__(self, store: Store, tracer: Tracer | None = None) -> None:
        self.health = health = Health()
        self.endpoint = Endpoint()
        self._name = uuid.uuid4().hex
        self._redelivery = ThreadPoolExecutor(1)
        self._executor = ThreadPoolExecutor(1)
        self.server = Server(
            Dispatcher([self.endpoint], '1.1'),
            Quarantine(store, 1, health),
            self._redelivery,
            Outcomes(store, EngineOptions(outcome_retention=60.0), health),
            self._executor,
            health,
            tracer,
        )
        self.server.bus = transport.new_consumer(
            new_conf(),
            f'inproc://{self._name}/',
            transport.Target('e', 't', server='s'),
            self.server.take,
            health,
        )

    def __enter__(self):
        self.server.bus.start()
        return self

    def __exit__(self, *fault):
        for future in self.endpoint.futures.values():
            if not future.done():
                future.set_result('the end')
        self.server.bus.stop_consuming()
        self._redelivery.shutdown(wait=False, cancel_futures=True)
        assert self.server.finish(5)
        self.server.bus.close()
        self._redelivery.shutdown()
        self._executor.shutdown()

    def send(self, name, redelivered=False, timeout=None, context=()):
        """Send a message of a name; return the queue that its reply is for."""
        message = {'method': 'ask', 'args': {'name': name}}
        return self.send_message(
            message, name, redelivered, timeout, dict(context)
        )

    def send_message(
        self, message, name='', redelivered=False, timeout=None, context=None
    ):
        """Send a message; return the queue that its reply is for."""
        return inproc_calls.send(
            f'{self._name}/',
            'e/t',
            context or {},
            message,
            name,
            redelivered,
            timeout,
        )

    def wait_for(self, *names):
        """Wait until the endpoint was asked these names and no others."""
        wait_until(lambda: len(self.endpoint.asked) >= len(names))
        assert self.endpoint.asked == [*names]


@pytest.fixture
def bus(store):
    with Bus(store) as made:
        yield made


@pytest.fixture
def traced(store):
    """Give a bus with a tracer, and the collector of its spans."""
    with collector() as spans:
        tracer = Tracer(spans.endpoint, 0.0, 'server')
        with Bus(store, tracer) as made:
            yield made, spans
        tracer.close()


@pytest.fixture
def store(make_store):
    return make_store('sqlite')


def test_reply_is_sent_when_the_result_is_there(bus):
    replies = bus.send('a')
    bus.wait_for('a')
    assert replies.empty()
    bus.endpoint.futures['a'].set_result('done')
    assert replies.get(timeout=LIMIT_S) == ('"done"', None)
    assert bus.endpoint.undone == []


def test_duration_of_a_request_is_measured_by_verb_and_outcome(bus):
    """From its arrival: the reply follows half a second later."""
    served = bus.send('a')
    bus.wait_for('a')
    time.sleep(0.5)
    bus.endpoint.futures['a'].set_result('done')
    served.get(timeout=LIMIT_S)
    bus.send_message({'method': 'stranger'}).get(timeout=LIMIT_S)
    bus.send_message({'method': 'ask', 'args': {}}).get(timeout=LIMIT_S)

    def measured(what, **labels):
        name = f'scheduler_service_request_duration_seconds_{what}'
        return bus.health.registry.get_sample_value(name, labels)

    for verb, outcome in (
        ('ask', 'answered'),
        ('other', 'InvalidRequest'),
        ('ask', 'SchedulerError'),
    ):
        one = {'verb': verb, 'outcome': outcome}
        wait_until(lambda one=one: measured('count', **one) == 1)
    answered = {'verb': 'ask', 'outcome': 'answered'}
    assert measured('bucket', le='0.25', **answered) == 0
    assert measured('sum', **answered) >= 0.5


def test_returned_request_is_measured_when_it_is_answered(bus):
    bus.send('a')
    bus.wait_for('a')
    bus.endpoint.futures['a'].set_exception(RequestReturned())
    bus.wait_for('a', 'a')
    found = bus.health.registry.get_sample_value
    name = 'scheduler_service_request_duration_seconds_count'
    answered = {'verb': 'ask', 'outcome': 'answered'}
    assert found(name, answered) is None
    bus.endpoint.futures['a'].set_result('again')
    wait_until(lambda: found(name, answered) == 1)


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


def test_message_is_refused_when_it_ended_the_daemon_before(bus, store):
    other = Quarantine(store, 1, Health())
    other.begin('a', {'method': 'ask', 'args': {}}, {})
    _, failure = bus.send('a', redelivered=True).get(timeout=LIMIT_S)
    assert 'RequestQuarantined' in failure
    assert bus.endpoint.asked == []


def test_message_is_dispatched_again_when_it_was_done_before(bus):
    for count in (1, 2, 3):
        replies = bus.send('a', redelivered=True)
        bus.wait_for(*'a' * count)
        bus.endpoint.futures['a'].set_result('done')
        assert replies.get(timeout=LIMIT_S) == ('"done"', None)


def test_message_is_not_refused_when_it_was_returned_before(bus):
    replies = bus.send('a', redelivered=True)
    for count in (1, 2, 3):
        bus.wait_for(*'a' * count)
        bus.endpoint.futures['a'].set_exception(RequestReturned())
    bus.wait_for(*'aaaa')
    bus.endpoint.futures['a'].set_result('done')
    assert replies.get(timeout=LIMIT_S) == ('"done"', None)


def test_message_goes_back_to_its_queue_when_the_daemon_pauses(bus):
    pausing = [False, True]
    bus.server.bus.is_unwanted = lambda request: pausing.pop()
    bus.send('a', redelivered=True)
    bus.wait_for('a')
    assert pausing == []


def test_message_comes_again_when_its_request_is_returned(bus):
    replies = bus.send('a')
    bus.wait_for('a')
    first = bus.endpoint.futures['a']
    first.set_exception(RequestReturned())
    bus.wait_for('a', 'a')
    assert replies.empty()
    bus.endpoint.futures['a'].set_result('again')
    assert replies.get(timeout=LIMIT_S) == ('"again"', None)


@pytest.mark.parametrize('redelivered', [False, True])
def test_result_is_undone_when_the_caller_has_left(bus, redelivered):
    """Unless an earlier delivery may have been answered in time."""
    replies = bus.send('a', timeout=0.01, redelivered=redelivered)
    bus.wait_for('a')
    # The deadline is counted from the delivery, which is before this.
    time.sleep(0.1)
    bus.endpoint.futures['a'].set_result('claim')
    _, failure = replies.get(timeout=LIMIT_S)
    assert 'TooLate' in failure
    assert bus.endpoint.undone == ([] if redelivered else ['claim'])


@pytest.mark.parametrize(
    'message',
    [
        {},
        {'method': None},
        {'method': ['ask']},
        {'method': 'other'},
        {'method': '_hidden'},
        {'method': 'asked'},
        {'method': 'ask', 'namespace': 'a'},
        *(
            {'method': 'ask', 'version': version}
            for version in ('2.0', '1.2', '0.9', '1', 'x', 11)
        ),
    ],
    ids=repr,
)
def test_what_is_no_request_is_refused_and_not_passed_on(bus, message):
    _, failure = bus.send_message(message).get(timeout=LIMIT_S)
    assert 'InvalidRequest' in failure
    assert bus.endpoint.asked == []


def test_trace_has_the_reply_as_its_last_stage(traced):
    bus, spans = traced
    replies = bus.send('a', context=SAMPLED)
    bus.wait_for('a')
    # The request takes much longer than its reply.
    time.sleep(0.5)
    bus.endpoint.futures['a'].set_result('done')
    replies.get(timeout=LIMIT_S)
    found = spans.wait_for('ask', 'reply')
    whole, reply = found['ask'], found['reply']
    assert whole.attributes['scheduler.outcome'] == 'answered'
    assert reply.parent == whole.id
    assert whole.end - whole.start >= 0.5e9
    assert reply.start - whole.start >= 0.4e9
    assert whole.start <= reply.start <= reply.end <= whole.end + 1e6


def test_what_a_message_causes_has_its_trace_as_parent(traced):
    bus, spans = traced
    replies = bus.send('a', context=SAMPLED)
    bus.wait_for('a')
    bus.endpoint.futures['a'].set_result('done')
    replies.get(timeout=LIMIT_S)
    whole = spans.wait_for('ask')['ask']
    passed_on = bus.endpoint.contexts[0]['traceparent'].split('-')
    assert passed_on[1:3] == [whole.trace, whole.id]
    assert whole.parent == SAMPLED['traceparent'].split('-')[2]


def test_trace_of_a_request_that_is_returned_says_so(traced):
    bus, spans = traced
    replies = bus.send('a', context=SAMPLED)
    bus.wait_for('a')
    bus.endpoint.futures['a'].set_exception(RequestReturned())
    bus.wait_for('a', 'a')
    bus.endpoint.futures['a'].set_result('again')
    replies.get(timeout=LIMIT_S)
    wait_until(lambda: len(spans.named('ask')) == 2)
    outcomes = [
        one.attributes['scheduler.outcome'] for one in spans.named('ask')
    ]
    assert outcomes == ['returned', 'answered']


def test_message_that_is_no_request_has_a_trace_too(traced):
    bus, spans = traced
    bus.send_message({}, context=SAMPLED).get(timeout=LIMIT_S)
    found = spans.wait_for('None')['None']
    assert found.attributes['scheduler.outcome'] == 'InvalidRequest'


def test_unexpected_fault_is_answered_by_its_kind(bus):
    """The endpoint raises it where the arguments have no name."""
    _, failure = bus.send_message({'method': 'ask', 'args': {}}).get(
        timeout=LIMIT_S
    )
    assert 'Internal error: KeyError' in failure
