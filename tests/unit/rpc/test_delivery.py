"""The delivery of a reply: the order of its steps, and steps that fail."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service.bus.wire import Consumer, Publication, Request
from scheduler_service.engine.health import Health
from scheduler_service.engine.messages import (
    BatchFuture,
    ReplyFuture,
    Unrecorded,
)
from scheduler_service.model import HostsAnswer, Placement, Selection
from scheduler_service.rpc.delivery import CastReply, Delivery, ReplyForm
from scheduler_service.rpc.endpoints import ReplyTo
from scheduler_service.settings import EngineOptions
from scheduler_service.store.claims import outcomes as recorded
from scheduler_service.store.ports.recall import Outcomes


class Bus(Consumer):
    """Records what is done, in place of a broker."""

    def __init__(self) -> None:
        super().__init__('openstack')
        self.steps: list[str] = []
        self.sent: list[Publication] = []
        self.released = False

    def call(self, work, *args) -> None:
        work(*args)

    def _no_step(self, *args) -> None:
        raise AssertionError('a delivery has no such step')

    start = pause = resume = stop_consuming = close = _no_step

    def hold(self, request: Request) -> None:
        self.steps.append('hold')

    def publish(self, publication: Publication) -> None:
        self.steps.append('cast' if publication.exchange else 'reply')
        self.sent.append(publication)

    def acknowledge(self, request: Request) -> None:
        assert request.settled
        self.steps.append('acknowledge')

    def confirm(self, accepted: bool = True) -> None:
        """Confirm or give up the last publication."""
        self.sent[-1].done(accepted)

    def message(self) -> Any:
        """Return the last message."""
        return json.loads(json.loads(self.sent[-1].body)['oslo.message'])


class Executor(ThreadPoolExecutor):
    """Waits for what is done elsewhere."""

    def submit(self, work, /, *args):
        done = super().submit(work, *args)
        done.result()
        return done


class Notifier:
    """Records the step, in place of oslo.messaging's notifier."""

    def __init__(self, steps: list[str]) -> None:
        self._steps = steps

    def info(self, ctxt, event, payload) -> None:
        self._steps.append(event)


@pytest.fixture
def bus():
    return Bus()


@pytest.fixture
def executor():
    with Executor(1) as made:
        yield made


@pytest.fixture
def store(make_store):
    return make_store('sqlite')


@pytest.fixture
def outcomes(store):
    return Outcomes(store, EngineOptions(outcome_retention=60.0), Health())


@pytest.fixture
def deliver(bus, executor, outcomes):
    """Give a function that delivers the outcome of a request."""

    def run(
        result=None, error=None, is_call=True, unrecorded=None,
        redelivered=False, **plan,
    ) -> Request:  # fmt: skip
        request = Request(bus, {}, {})
        request.redelivered = redelivered
        if is_call:
            request.msg_id, request.reply_q = 'm', 'reply_1'
        future = ReplyFuture()
        future.unrecorded = unrecorded
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
        end = lambda: bus.steps.append('done')  # noqa: E731
        Delivery(
            request, future, ReplyForm(**plan), outcomes, executor,
            lambda outcome: None, end,
        ).send()  # fmt: skip
        return request

    return run


def cast_reply(reply_to=None, notifier=None):
    message = {'method': 'select_destinations'}
    request = Request(Bus(), message, {'user_id': 'u'})
    return CastReply(request, reply_to, notifier)


def test_a_request_is_acknowledged_when_its_reply_is_confirmed(bus, deliver):
    request = deliver({'a': 1})
    assert bus.steps == ['reply']
    assert request.settled
    assert bus.sent[0].destination == 'reply_1'
    assert bus.message()['result'] == {'a': 1}
    bus.confirm()
    assert bus.steps == ['reply', 'acknowledge', 'done']


def test_a_cast_is_acknowledged_without_a_reply(bus, deliver):
    deliver({'a': 1}, is_call=False)
    assert bus.steps == ['acknowledge', 'done']


def test_cast_and_notification_come_before_the_reply(bus, deliver):
    to = ReplyTo(topic='t', server='s')
    cast = cast_reply(to, Notifier(bus.steps))
    deliver({'request_id': 'r'}, cast=cast)
    assert bus.steps == ['cast']
    sent = bus.sent[0]
    assert (sent.exchange, sent.key, sent.destination) == (
        'openstack', 't.s', '/t/s',
    )  # fmt: skip
    assert bus.message()['method'] == 'scheduler_answer'
    bus.confirm()
    event = 'scheduler.select_destinations.end'
    assert bus.steps == ['cast', event, 'reply']
    bus.confirm()
    assert bus.steps[3:] == ['acknowledge', 'done']


def test_an_error_is_sent_in_the_form_that_the_caller_expects(bus, deliver):
    made = KeyError('x')
    deliver(error=errors.NoValidHost(), failure=lambda _: made)
    failure = json.loads(bus.message()['failure'])
    assert (failure['class'], failure['args']) == ('KeyError', ['x'])
    deliver(error=errors.NoValidHost())
    assert 'NoValidHost' in bus.message()['failure']


def test_a_refused_request_is_acknowledged_before_its_reply(bus, deliver):
    request = deliver(error=errors.NoValidHost())
    assert bus.steps == ['acknowledge', 'reply']
    assert request.settled
    bus.confirm()
    assert bus.steps == ['acknowledge', 'reply', 'done']


def test_a_message_of_refused_requests_is_acknowledged_first(bus, deliver):
    deliver(batch(errors.NoValidHost(), errors.NoValidHost()), serializer=len)
    assert bus.steps == ['acknowledge', 'reply']


def test_a_refusal_beside_a_result_is_recorded_before_the_reply(
    bus, deliver, store
):
    items = batch(answer(), errors.NoValidHost())
    items[1].unrecorded = Unrecorded('m/1', ['i'])
    deliver(items, serializer=len)
    assert bus.steps == ['reply']
    assert kinds_under(store, 'm/1') == ['refused']
    bus.confirm()
    assert bus.steps == ['reply', 'acknowledge', 'done']


def test_a_refusal_is_recorded_where_another_daemon_has_the_message(
    deliver, store
):
    refused = {
        'error': errors.NoValidHost(),
        'unrecorded': Unrecorded('m/0', ['i']),
    }
    deliver(**refused)
    assert kinds_under(store, 'm/0') == []
    deliver(**refused, redelivered=True)
    assert kinds_under(store, 'm/0') == ['refused']


def test_a_request_comes_again_where_its_copy_has_another_outcome(
    bus, deliver, store
):
    result = recorded.RecordedOutcome('m/0', recorded.RESULT, '{}')
    store.write(lambda writer: recorded.add(writer.conn, [result]))
    deliver(
        error=errors.NoValidHost(),
        unrecorded=Unrecorded('m/0', ['i']),
        redelivered=True,
    )
    assert bus.steps == ['hold', 'done']


def test_a_released_request_is_acknowledged_once(bus, deliver):
    deliver({})
    bus.sent[0].release()
    bus.sent[0].release()
    assert bus.steps == ['reply', 'acknowledge']
    bus.confirm()
    assert bus.steps == ['reply', 'acknowledge', 'done']


def test_a_result_that_is_given_up_is_undone(bus, deliver):
    undone: list[object] = []
    deliver('r', undo=undone.append)
    bus.confirm(False)
    assert bus.steps == ['reply', 'acknowledge', 'done']
    assert undone == ['r']


def test_an_error_that_is_given_up_undoes_nothing(bus, deliver):
    undone: list[object] = []
    deliver(error=errors.NoValidHost(), undo=undone.append)
    bus.confirm(False)
    assert undone == []


def test_a_result_that_was_cast_is_not_undone(bus, deliver):
    undone: list[object] = []
    cast = cast_reply(ReplyTo(topic='t'))
    deliver({'request_id': 'r'}, cast=cast, undo=undone.append)
    bus.confirm()
    bus.confirm(False)
    assert bus.steps == ['cast', 'reply', 'acknowledge', 'done']
    assert undone == []


def test_a_cast_that_is_given_up_ends_the_delivery(bus, deliver):
    undone: list[object] = []
    cast = cast_reply(ReplyTo(topic='t'))
    deliver({'request_id': 'r'}, cast=cast, undo=undone.append)
    bus.confirm(False)
    assert bus.steps == ['cast', 'acknowledge', 'done']
    assert undone == [{'request_id': 'r'}]


def test_a_result_that_cannot_be_encoded_is_undone(bus, deliver, caplog):
    undone: list[object] = []
    result = {'a': object()}
    deliver(result, undo=undone.append)
    assert bus.steps == ['acknowledge', 'done']
    assert undone == [result]
    assert 'could not be sent' in caplog.text


def batch(*outcomes):
    """Return the items of a message with several requests."""
    made = BatchFuture(len(outcomes))
    items = list(made.each)
    for item, outcome in zip(items, outcomes, strict=True):
        if isinstance(outcome, Exception):
            item.set_exception(outcome)
        else:
            item.set_result(outcome)
    return made.whole.result()


def kinds_under(store, key):
    """Return what kinds of outcomes are recorded of a request."""
    with store.reading() as conn:
        return [found.kind for found in recorded.find(conn, key)]


def answer() -> HostsAnswer:
    """Return an answer with one placement."""
    selection = Selection(host='h', node='h', uuid='u')
    placed = Placement(instance_uuid='1', selected=selection, alternates=[])
    return HostsAnswer(request_id='r', placements=[placed])
