"""Delivery of a reply: cast of the result, reply, acknowledgement.

All of it runs on the consumer's thread, but for what takes long: the encoding
of large results, and notifications.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple

from scheduler_service import errors
from scheduler_service.bus import wire
from scheduler_service.bus.wire import Publication, Request
from scheduler_service.engine.jobs import BatchItem, RequestReturned
from scheduler_service.model import HostsAnswer, plain
from scheduler_service.rpc.cast_replies import CastReply
from scheduler_service.rpc.incoming import stored_id
from scheduler_service.store.ports.redeliveries import Quarantine

LOG = logging.getLogger(__name__)
# A result with more placements is encoded elsewhere, since all other requests
# would wait for it: 20,000 take a tenth of a second.
_MOST_PLACEMENTS = 256
AsFailure = Callable[[errors.SchedulerError], Exception]


class ReplyPlan(NamedTuple):
    """How a result becomes a reply.

    :ivar serializer: makes plain values of the result; None: the result is
        sent unchanged
    :ivar cast: the cast and the notification of the result; None: neither
    :ivar failure: makes the caller's error from the error; None: the error
        is sent unchanged
    :ivar undo: called with a result that cannot be delivered
    """

    serializer: Callable[[Any], Any] | None = None
    cast: CastReply | None = None
    failure: AsFailure | None = None
    undo: Callable[[Any], None] | None = None


class Delivery:
    """A result or an error, and the request that is acknowledged after it.

    :param result: of the request; None with an error
    :param executor: for what takes long
    :param on_done: called when the request is acknowledged and its reply is
        sent or given up
    """

    def __init__(
        self,
        request: Request,
        result: Any,
        error: errors.SchedulerError | None,
        plan: ReplyPlan,
        executor: Executor,
        on_done: Callable[[], None],
    ) -> None:
        self._request = request
        self._bus = request.consumer
        self._result = result
        self._error = error
        self._plan = plan
        self._executor = executor
        self._on_done = on_done
        self._undo = plan.undo if error is None else None
        self._acknowledged = False
        self._reply = b''
        self._cast = b''

    def send(self) -> None:
        """Send the cast and the reply, and acknowledge the request then."""
        if _placements(self._result) > _MOST_PLACEMENTS:
            self._executor.submit(self._encode_elsewhere)
        else:
            self._go_on(self._encode())

    def _encode_elsewhere(self) -> None:
        self._bus.call(self._go_on, self._encode())

    def _go_on(self, encoded: bool) -> None:
        if encoded:
            self._send_cast()
        else:
            self._abandon()

    def _encode(self) -> bool:
        """Encode reply and cast; return whether that was possible."""
        plan, request, error = self._plan, self._request, self._error
        try:
            result = self._result
            if plan.serializer is not None and error is None:
                result = plan.serializer(result)
            if plan.cast is not None:
                result = plain(result)
                plan.cast.set_outcome(result, error)
                if plan.cast.reply_to is not None:
                    self._cast = wire.encode(plan.cast.message())
            if request.is_call:
                self._reply = wire.reply(
                    request.msg_id, result, self._failure()
                )
        except Exception:
            LOG.exception('Dropped a reply that could not be sent')
            return False
        return True

    def _failure(self) -> BaseException | None:
        """Return the error that the caller gets."""
        if self._error is None or self._plan.failure is None:
            return self._error
        return self._plan.failure(self._error)

    def _send_cast(self) -> None:
        if not self._cast:
            self._notify()
            return
        assert self._plan.cast is not None
        to = self._plan.cast.reply_to
        self._bus.publish(
            Publication(
                '/'.join((to.exchange or '', to.topic, to.server or '')),
                self._cast,
                self._after_cast,
                self._acknowledge,
                to.exchange or self._bus.exchange,
                f'{to.topic}.{to.server}' if to.server else to.topic,
            )
        )

    def _after_cast(self, taken: bool) -> None:
        if taken:
            # A receiver has the result.
            self._undo = None
            self._notify()
        else:
            self._abandon()

    def _notify(self) -> None:
        """Publish the notification, which may wait for its broker."""
        if self._plan.cast is None or not self._plan.cast.notifies:
            self._send_reply()
        else:
            self._executor.submit(self._publish, self._plan.cast)

    def _publish(self, cast: CastReply) -> None:
        cast.notify()
        self._bus.call(self._send_reply)

    def _send_reply(self) -> None:
        self._request.settled = True
        if self._request.reply_q is None:
            self._after_reply(True)
            return
        self._bus.publish(
            Publication(
                self._request.reply_q,
                self._reply,
                self._after_reply,
                self._acknowledge,
            )
        )

    def _after_reply(self, taken: bool) -> None:
        if taken:
            self._acknowledge()
            self._on_done()
        else:
            self._abandon()

    def _acknowledge(self) -> None:
        """Acknowledge the request, once.

        This precedes the reply only where many replies wait for queues that
        are missing or full.
        """
        if self._acknowledged:
            return
        self._acknowledged = True
        self._request.settled = True
        self._bus.acknowledge(self._request)
        trace = self._request.trace
        if trace is not None:
            trace.end('answered' if self._error is None else self._error.name)

    def _abandon(self) -> None:
        """Acknowledge a request whose reply cannot be delivered.

        The result is undone, since it reaches no caller.
        """
        self._acknowledge()
        undo, self._undo = self._undo, None
        if undo is not None:
            undo(self._result)
        self._on_done()


def _placements(result: Any) -> int:
    """Return the number of placements in a result of the engine."""
    if isinstance(result, HostsAnswer):
        return len(result.placements)
    if not isinstance(result, list):
        return 0
    return sum(
        _placements(item.result())
        for item in result
        if isinstance(item, BatchItem)
    )


class RedeliveryWorker:
    """A thread that dispatches redelivered messages and waits for each.

    :param quarantine: counts deliveries, and refuses a message that had too
        many
    """

    def __init__(self, quarantine: Quarantine) -> None:
        self._quarantine = quarantine
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
        message: Request,
        dispatch: Callable[[Request], Future[Any] | None],
        refuse: Callable[[Request, errors.SchedulerError], None],
    ) -> None:
        """Dispatch a message after the earlier ones are done.

        :param refuse: called with a message that is put aside, and the error
        """
        self._waiting.put((message, dispatch, refuse))

    def _run(self) -> None:
        while (task := self._waiting.get()) is not None:
            try:
                self._work(*task)
            except Exception:
                LOG.exception('A redelivered message failed')

    def _work(
        self,
        message: Request,
        dispatch: Callable[[Request], Future[Any] | None],
        refuse: Callable[[Request, errors.SchedulerError], None],
    ) -> None:
        if message.unwanted:
            message.requeue()
            return
        message_id = stored_id(message.unique_id)
        try:
            self._quarantine.begin(message_id, message.message, message.ctxt)
        except errors.RequestPutAside as error:
            refuse(message, error)
            return
        future = dispatch(message)
        # The next message waits until this one is done.
        fault = None if future is None else future.exception()
        if isinstance(fault, RequestReturned):
            self._quarantine.cancel(message_id)
        else:
            self._quarantine.end(message_id)
