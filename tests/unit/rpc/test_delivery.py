"""One reply: the order of its steps, and what happens where one fails."""

from __future__ import annotations

import pytest

from scheduler_service import errors
from scheduler_service.engine.jobs import BatchFuture
from scheduler_service.model import HostsAnswer, Placement, Selection
from scheduler_service.rpc.delivery import Delivery


class Message:
    """A message that records what is done to it."""

    def __init__(self, steps: list[str], fails: bool = False) -> None:
        self.steps = steps
        self.fails = fails
        self.sent: list[tuple[object, object]] = []

    def reply(self, reply=None, failure=None) -> None:
        self.steps.append('reply')
        if self.fails:
            self.fails = False
            raise RuntimeError('no such queue')
        self.sent.append((reply, failure))

    def acknowledge(self) -> None:
        self.steps.append('acknowledge')


class DirectMessage(Message):
    """A message of a driver that can send without waiting."""

    encodes_structs = True

    def __init__(self, steps: list[str], accepts: bool = True) -> None:
        super().__init__(steps)
        self.accepts = accepts
        self.reply_refused = not accepts

    def try_reply(self, reply=None, failure=None) -> bool:
        self.steps.append('try_reply')
        self.sent.append((reply, failure))
        return self.accepts


def test_on_reply_comes_before_the_reply_and_acknowledgement_last():
    steps: list[str] = []
    message = Message(steps)
    Delivery(message, {'a': 1}, None, lambda *_: steps.append('on_reply'))()
    assert steps == ['on_reply', 'reply', 'acknowledge']
    assert message.sent == [({'a': 1}, None)]


def test_a_repeated_delivery_goes_on_with_the_step_that_failed():
    steps: list[str] = []
    serialized = []

    def serializer(result):
        serialized.append(result)
        return result

    message = Message(steps, fails=True)
    delivery = Delivery(
        message, 1, None, lambda *_: steps.append('on_reply'), serializer
    )
    with pytest.raises(RuntimeError):
        delivery()
    delivery()
    assert steps == ['on_reply', 'reply', 'reply', 'acknowledge']
    assert serialized == [1]


def test_destination_is_the_reply_queue_once_the_result_is_passed_on():
    class OnReply:
        destination = 'elsewhere'

        def __call__(self, result, error) -> None:
            pass

    message = Message([], fails=True)
    message.reply_q = 'reply_one'
    assert Delivery(message, 1, None).destination == 'reply_one'
    delivery = Delivery(message, 1, None, OnReply())
    assert delivery.destination == 'elsewhere'
    with pytest.raises(RuntimeError):
        delivery()
    assert delivery.destination == 'reply_one'


def test_destination_is_not_known_when_the_message_names_no_queue():
    assert Delivery(Message([]), 1, None).destination is None


def test_an_error_is_sent_as_the_bus_takes_it():
    error = errors.NoValidHost()
    message = Message([])
    Delivery(message, None, error)()
    assert message.sent == [(None, (errors.NoValidHost, error, None))]


def test_try_send_now_acknowledges_what_was_sent():
    steps: list[str] = []
    assert Delivery(DirectMessage(steps), 1, None).try_send_now()
    assert steps == ['try_reply', 'acknowledge']


def test_try_send_now_leaves_the_message_where_it_was_not_sent():
    steps: list[str] = []
    message = DirectMessage(steps, accepts=False)
    delivery = Delivery(message, 1, None)
    assert not delivery.try_send_now()
    assert delivery.refused
    assert steps == ['try_reply']


def test_try_send_now_leaves_the_message_where_sending_fails():
    class Failing(DirectMessage):
        def try_reply(self, reply=None, failure=None):
            raise RuntimeError('no such queue')

    steps: list[str] = []
    assert not Delivery(Failing(steps), 1, None).try_send_now()
    assert steps == []


@pytest.mark.parametrize('on_reply', [None, lambda *_: None])
def test_try_send_now_sends_nothing_that_may_wait(on_reply):
    steps: list[str] = []
    kind = DirectMessage if on_reply else Message
    assert not Delivery(kind(steps), 1, None, on_reply).try_send_now()
    assert steps == []


@pytest.mark.parametrize(
    ('entries', 'each', 'prompt'),
    [(1, 256, True), (1, 257, False), (16, 16, True), (17, 16, False)],
)
def test_a_reply_with_many_placements_is_left_to_the_publisher(
    entries, each, prompt
):
    batch = BatchFuture(entries)
    for item in batch.each:
        item.set_result(answer(each))
    whole = batch.whole.result()
    assert Delivery(DirectMessage([]), whole, None).try_send_now() is prompt
    if entries == 1:
        one = Delivery(DirectMessage([]), answer(each), None)
        assert one.try_send_now() is prompt


@pytest.mark.parametrize('result', [7, {'pools': []}])
def test_results_without_placements_are_sent_at_once_when_there_are_many(
    result,
):
    batch = BatchFuture(300)
    for item in batch.each:
        item.set_result(result)
    delivery = Delivery(DirectMessage([]), batch.whole.result(), None)
    assert delivery.try_send_now()


def answer(count: int) -> HostsAnswer:
    """Return an answer with placements on one host."""
    selection = Selection(host='h', node='h', uuid='u')
    return HostsAnswer(
        request_id='r',
        placements=[
            Placement(instance_uuid=str(n), selected=selection, alternates=[])
            for n in range(count)
        ],
    )


def test_a_message_is_acknowledged_once_when_its_reply_comes_later():
    steps: list[str] = []
    delivery = Delivery(Message(steps), 1, None)
    delivery.acknowledge()
    delivery()
    assert steps == ['acknowledge', 'reply']


def test_an_abandoned_message_is_acknowledged_without_a_reply():
    steps: list[str] = []
    Delivery(Message(steps), 1, None).abandon()
    assert steps == ['acknowledge']


def test_a_result_that_cannot_be_delivered_is_undone_once():
    undone: list[object] = []
    delivery = Delivery(Message([]), 'r', None, undo=undone.append)
    delivery.abandon()
    delivery.abandon()
    assert undone == ['r']


def test_an_error_that_cannot_be_delivered_undoes_nothing():
    undone: list[object] = []
    error = errors.NoValidHost()
    Delivery(Message([]), None, error, undo=undone.append).abandon()
    assert undone == []


def test_a_result_that_somebody_got_by_a_cast_is_not_undone():
    undone: list[object] = []

    class Cast:
        destination = 'queue'

        def __call__(self, result, error):
            assert result == 'r'

    message = Message([], fails=True)
    delivery = Delivery(message, 'r', None, Cast(), undo=undone.append)
    with pytest.raises(RuntimeError):
        delivery()
    delivery.abandon()
    assert undone == []


def test_the_caller_gets_what_is_made_of_an_error():
    message, made = Message([]), KeyError('x')
    Delivery(message, None, errors.NoValidHost(), failure=lambda _: made)()
    assert message.sent == [(None, (KeyError, made, None))]
