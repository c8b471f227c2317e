"""Messages, and the results of jobs that came together."""

import threading
import time

import pytest

from scheduler_service.engine.messages import (
    BatchFuture,
    DeliveredMessage,
    RequestReturned,
    is_late,
)


def test_a_caller_is_late_when_its_deadline_has_passed():
    assert is_late(time.monotonic() - 1)
    assert not is_late(time.monotonic() + 60)
    assert not is_late(None)


def test_batch_is_done_when_each_item_is():
    batch = BatchFuture(2)
    first, second = batch.each
    first.set_result(1)
    assert first.done()
    assert not batch.whole.done()
    second.set_exception(ValueError('no'))
    assert batch.whole.result(0) == [first, second]
    assert (first.result(), first.exception()) == (1, None)
    assert str(second.exception()) == 'no'


def test_batch_is_done_once_when_threads_finish_its_items():
    batch = BatchFuture(200)
    calls: list[int] = []
    batch.whole.add_done_callback(lambda future: calls.append(1))
    items = list(batch.each)
    start = threading.Barrier(4)

    def finish(part):
        start.wait()
        for item in part:
            item.set_result(None)

    threads = [
        threading.Thread(target=finish, args=(items[n::4],)) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(batch.whole.result(0)) == 200
    assert calls == [1]


def test_batch_is_returned_as_a_whole_when_an_item_is():
    batch = BatchFuture(2)
    batch.whole.returnable = True
    first, second = batch.each
    assert first.returnable
    first.set_result(1)
    second.set_exception(RequestReturned())
    with pytest.raises(RequestReturned):
        batch.whole.result(0)


@pytest.mark.parametrize(
    ('sent', 'kept'),
    [
        ('req-1', 'req-1'),
        ('r' * 255, 'r' * 255),
        ('r' * 256, None),
        ('req\n1', None),
        ('req\x00', None),
        ('', None),
        (7, None),
        (None, None),
    ],
)
def test_an_id_of_a_caller_is_kept_where_it_can_be(sent, kept):
    message = DeliveredMessage(context={'request_id': sent})
    assert message.sent_id() == kept
