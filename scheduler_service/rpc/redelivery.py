"""Works on messages that were delivered before, one after the other.

Such a message may have ended the daemon that worked on it. While nothing else
of its kind is under way it is known which one ends this daemon, too. The
worker owns its queue and its thread; any thread may add messages.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from scheduler_service import errors
from scheduler_service.engine.futures import RequestReturned
from scheduler_service.engine.quarantine import Quarantine
from scheduler_service.rpc.delivery import Delivery
from scheduler_service.rpc.message_id import stored_id
from scheduler_service.rpc.reply_publisher import ReplyPublisher

LOG = logging.getLogger(__name__)


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
        """End the thread; the broker gives what waits to another daemon."""
        self._waiting.put(None)

    def put(
        self,
        message: Any,
        dispatch: Callable[[Any], Future[Any] | None],
        failure: Callable[[errors.SchedulerError], Exception] | None = None,
    ) -> None:
        """Dispatch a message when those before it are done.

        :param failure: makes what the caller gets of an error
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
        # The next message has to wait until this one is done.
        fault = None if future is None else future.exception()
        if isinstance(fault, RequestReturned):
            self._quarantine.cancel(message_id)
        else:
            self._quarantine.end(message_id)
