"""Delivery of a reply: on_reply callback, reply, acknowledgement.

One thread at a time uses a delivery: the thread that finished the request, or
if that thread may not wait, a thread of the reply publisher.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from scheduler_service import errors
from scheduler_service.engine.jobs import BatchItem, RequestReturned
from scheduler_service.model import HostsAnswer, plain
from scheduler_service.rpc.cast_replies import ReplyCallback
from scheduler_service.rpc.incoming import stored_id
from scheduler_service.rpc.reply_publisher import ReplyPublisher
from scheduler_service.store.ports.redeliveries import Quarantine

LOG = logging.getLogger(__name__)
# A reply with more placements is left to the publisher's threads, since all
# other requests would wait for it: 20,000 take a tenth of a second.
_MAX_PROMPT = 256


class Delivery:
    """A result or an error, and the message that is acknowledged after it.

    :param result: of the request; None with an error
    :param on_reply: called with (result, error) before the reply is sent; may
        raise if its destination does not exist yet, and is then called again
        with the next attempt
    :param serializer: makes plain values of the result; None: the result is
        sent unchanged
    :param failure: makes the caller's error from the error; None: the error
        is sent unchanged
    :param undo: called with a result that cannot be delivered
    """

    def __init__(
        self,
        message: Any,
        result: Any,
        error: errors.SchedulerError | None,
        on_reply: ReplyCallback | None = None,
        serializer: Callable[[Any], Any] | None = None,
        failure: Callable[[errors.SchedulerError], Exception] | None = None,
        undo: Callable[[Any], None] | None = None,
    ) -> None:
        self._message = message
        self._result = result
        self._error = error
        self._on_reply = on_reply
        self._serializer = serializer
        self._as_failure = failure
        self._undo = None if undo is None else partial(undo, result)
        self._serialized = False
        self._acknowledged = False

    @property
    def destination(self) -> str | None:
        """The destination of the next step; None: unknown."""
        if self._on_reply is not None:
            return getattr(self._on_reply, 'destination', None)
        return getattr(self._message, 'reply_q', None)

    @property
    def refused(self) -> bool:
        """Whether the destination refused a reply a moment ago."""
        if self._on_reply is not None:
            return False
        return bool(getattr(self._message, 'reply_refused', False))

    def __call__(self) -> None:
        """Deliver the reply; the next call repeats the step that failed."""
        self._serialize()
        if self._on_reply is not None:
            self._on_reply(self._result, self._error)
            if self.destination is not None:
                # A receiver has the result.
                self._undo = None
            self._on_reply = None
        self._message.reply(self._result, self._failure())
        self.acknowledge()

    def try_send_now(self) -> bool:
        """Reply on this thread if that cannot block.

        A caller with one request at a time would wait for the switch to
        another thread.

        :return: whether the reply was sent
        """
        try_reply = getattr(self._message, 'try_reply', None)
        if try_reply is None or self._on_reply is not None:
            return False
        if _placements(self._result) > _MAX_PROMPT:
            return False
        try:
            self._serialize()
            sent = try_reply(self._result, self._failure())
        except Exception:
            # The publisher tries again, and logs the fault.
            LOG.debug('A reply is left to the publisher', exc_info=True)
            return False
        if sent:
            self.acknowledge()
        return bool(sent)

    def acknowledge(self) -> None:
        """Acknowledge the message, once.

        This precedes the reply only where many replies wait for queues that
        are missing or full.
        """
        if not self._acknowledged:
            self._acknowledged = True
            self._message.acknowledge()
            trace = getattr(self._message, 'trace', None)
            if trace is not None:
                trace.end(
                    'answered' if self._error is None else self._error.name
                )

    def abandon(self) -> None:
        """Acknowledge a message whose reply cannot be delivered.

        The result is undone, since it reaches no caller.
        """
        self.acknowledge()
        undo, self._undo = self._undo, None
        if undo is not None and self._error is None:
            undo()

    def _serialize(self) -> None:
        """Replace the result by its serialized form, once."""
        if self._serialized:
            return
        result = self._result
        if self._serializer is not None and self._error is None:
            result = self._serializer(result)
        structs = getattr(self._message, 'encodes_structs', False)
        if self._on_reply is not None or not structs:
            result = plain(result)
        self._result, self._serialized = result, True

    def _failure(self) -> Any:
        """Return the error in the form of oslo.messaging."""
        if self._error is None:
            return None
        fault: Exception = self._error
        if self._as_failure is not None:
            fault = self._as_failure(self._error)
        return type(fault), fault, None


def _placements(result: Any) -> int:
    """Return the number of placements in a result of the engine."""
    if isinstance(result, HostsAnswer):
        return len(result.placements)
    if not isinstance(result, list):
        return 0
    return sum(
        _placements(one.result())
        for one in result
        if isinstance(one, BatchItem)
    )


class RedeliveryWorker:
    """A thread that dispatches redelivered messages and waits for each.

    :param quarantine: counts deliveries, and refuses a message that had too
        many
    """

    def __init__(
        self, quarantine: Quarantine, publisher: ReplyPublisher
    ) -> None:
        self._quarantine = quarantine
        self._publisher = publisher
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._run, name='redelivery', daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the broker gives waiting messages to others."""
        self._waiting.put(None)

    def put(
        self,
        message: Any,
        dispatch: Callable[[Any], Future[Any] | None],
        failure: Callable[[errors.SchedulerError], Exception] | None = None,
    ) -> None:
        """Dispatch a message after the earlier ones are done.

        :param failure: makes the caller's error from an error
        """
        self._waiting.put((message, dispatch, failure))

    def _run(self) -> None:
        while (task := self._waiting.get()) is not None:
            try:
                self._work(*task)
            except Exception:
                LOG.exception('A redelivered message failed')

    def _work(
        self,
        message: Any,
        dispatch: Callable[[Any], Future[Any] | None],
        failure: Callable[[errors.SchedulerError], Exception] | None,
    ) -> None:
        if getattr(message, 'unwanted', False):
            message.requeue()
            return
        message_id = stored_id(message.unique_id)
        try:
            self._quarantine.begin(message_id, message.message, message.ctxt)
        except errors.RequestPutAside as error:
            refusal = Delivery(message, None, error, failure=failure)
            self._publisher.put(refusal)
            return
        future = dispatch(message)
        # The next message waits until this one is done.
        fault = None if future is None else future.exception()
        if isinstance(fault, RequestReturned):
            self._quarantine.cancel(message_id)
        else:
            self._quarantine.end(message_id)
