"""The RPC server: it parses on the consumer's thread and never blocks there.

Endpoints return a result, or a :class:`Pending` with the future of a result.
The thread that completes the future only appends it to what the consumer's
thread does, which replies.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple

from scheduler_service import errors, tracing
from scheduler_service.bus.wire import Consumer, Request
from scheduler_service.engine.jobs import ReplyFuture, RequestReturned
from scheduler_service.rpc.delivery import (
    AsFailure,
    Delivery,
    RedeliveryWorker,
    ReplyPlan,
)
from scheduler_service.rpc.incoming import delivered, has_copies
from scheduler_service.store.ports.recall import Outcomes

LOG = logging.getLogger(__name__)
# Replies for queues that are missing or full are waited for so long at a stop,
# in seconds: another daemon sends them, if their messages are unacknowledged.
_LINES_S = 2.0
_CHECK_S = 0.01


class Pending(NamedTuple):
    """A reply that follows when a future is done.

    :ivar future: of the result, or of an error; RequestReturned sends the
        message back to its queue
    """

    future: Future[Any]
    plan: ReplyPlan = ReplyPlan()


class Dispatcher:
    """Dispatches a message to the method that it names, if it is served.

    :param endpoints: their METHODS take (context, arguments as a dict,
        message)
    :param version: the highest served version, such as ``1.1``
    :param failure: makes callers' errors from an error; None: they get the
        error unchanged
    """

    def __init__(
        self,
        endpoints: Sequence[Any],
        version: str,
        failure: AsFailure | None = None,
    ) -> None:
        self.failure = failure
        self._methods = {
            name: getattr(endpoint, name)
            for endpoint in endpoints
            for name in endpoint.METHODS
        }
        self._major, self._minor = (int(part) for part in version.split('.'))

    def dispatch(self, incoming: Any) -> Any:
        """Call the method; return a result or a :class:`Pending`.

        :raises InvalidRequest: the method or the version is not served, or an
            argument is invalid
        """
        message = incoming.message
        self._check_version(message.get('version', '1.0'))
        name = message.get('method')
        method = self._methods.get(name) if isinstance(name, str) else None
        if method is None or message.get('namespace') is not None:
            raise errors.InvalidRequest(
                f'no such method: {str(name)[:100]}',
                method=str(name)[:100],
                methods=sorted(self._methods),
            )
        args = message.get('args', {})
        return method(incoming.ctxt, args, incoming)

    def _check_version(self, version: Any) -> None:
        try:
            major, minor = (int(part) for part in version.split('.'))
        except (ValueError, AttributeError):
            major, minor = -1, 0
        if major != self._major or minor > self._minor:
            served = f'{self._major}.{self._minor}'
            raise errors.InvalidRequest(
                f'version {str(version)[:20]} is not served, only '
                f'{self._major}.0 to {served}',
                version=str(version)[:20],
                served=served,
            )


class Server:
    """Dispatches requests, and replies when they are done.

    :param redelivery_worker: gets messages that were delivered before
    :param outcomes: keeps what has to be recorded before a reply
    :param executor: for records, large replies, and notifications
    :param tracer: makes traces of messages; None: there are none
    :ivar bus: takes the requests, and calls :meth:`take`
    """

    bus: Consumer

    def __init__(
        self,
        dispatcher: Dispatcher,
        redelivery_worker: RedeliveryWorker,
        outcomes: Outcomes,
        executor: Executor,
        tracer: tracing.Tracer | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._redelivery_worker = redelivery_worker
        self._outcomes = outcomes
        self._executor = executor
        self._tracer = tracer
        # Deliveries that are not done; the consumer's thread counts them.
        self._delivering = 0

    def take(self, request: Request) -> None:
        """Process a request; called by the consumer's thread."""
        trace = self._tracer and self._tracer.begin(
            str(request.method)[:100], request.ctxt
        )
        if trace:
            request.trace = trace
            request.ctxt.update(trace.headers())
        if request.redelivered:
            self._redelivery_worker.put(request, self._dispatch, self._refuse)
        else:
            self._dispatch(request)

    def finish(self, timeout: float) -> bool:
        """Wait for replies; return whether all were sent.

        :param timeout: seconds
        """
        start = time.monotonic()
        while True:
            left = self._left()
            waited = time.monotonic() - start
            only_lines = left <= self.bus.in_lines() and waited > _LINES_S
            if not left or only_lines or waited > timeout:
                return not left
            time.sleep(_CHECK_S)

    def _left(self) -> int:
        """Return how many deliveries are left, after all work before."""
        found: list[int] = []
        done = threading.Event()

        def count() -> None:
            found.append(self._delivering)
            done.set()

        self.bus.call(count)
        return found[0] if done.wait(_LINES_S) else 1

    def _dispatch(self, request: Request) -> Future[Any]:
        try:
            result = self._dispatcher.dispatch(request)
        except errors.SchedulerError as error:
            LOG.warning(
                'Rejected %s: %s: %s (%s)',
                str(request.method)[:100],
                error.name,
                error,
                delivered(request.ctxt, request).caller(),
            )
            return self._refuse(request, error)
        except Exception as fault:
            LOG.exception('A request could not be dispatched')
            internal = errors.SchedulerError(
                f'Internal error: {type(fault).__name__}'
            )
            return self._refuse(request, internal)
        if not isinstance(result, Pending):
            result = finished(result)
        return self._reply_with(request, result)

    def _refuse(
        self, request: Request, error: errors.SchedulerError
    ) -> Future[Any]:
        """Reply with an error; any thread may call this."""
        return self._reply_with(request, finished(error=error))

    def _reply_with(self, request: Request, pending: Pending) -> Future[Any]:
        future, plan = pending
        if isinstance(future, ReplyFuture):
            future.returnable = request.shared
        if plan.failure is None and self._dispatcher.failure is not None:
            plan = plan._replace(failure=self._dispatcher.failure)
        # Do not close over the future: that would be a reference cycle, and
        # replies would wait for the garbage collector.
        future.add_done_callback(
            functools.partial(self.bus.call, self._finish, request, plan)
        )
        return future

    def _finish(
        self, request: Request, plan: ReplyPlan, future: Future[Any]
    ) -> None:
        fault = future.exception()
        if request.trace is not None:
            request.trace.replying_at = time.monotonic()
        if isinstance(fault, RequestReturned):
            if request.trace is not None:
                request.trace.end('returned')
            request.requeue()
            return
        if fault is None and request.is_late():
            # The caller has given up, so the claim would reach no caller. If
            # there is another copy, its reply may be in time.
            if plan.undo is not None and not has_copies(request):
                plan.undo(future.result())
            future = finished(error=errors.TooLate()).future
        self._delivering += 1
        Delivery(
            request,
            future,
            plan,
            self._outcomes,
            self._executor,
            self._count_done,
        ).send()

    def _count_done(self) -> None:
        self._delivering -= 1


def finished(
    result: Any = None, error: errors.SchedulerError | None = None
) -> Pending:
    """Return a reply that is there already."""
    future: Future[Any] = Future()
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
    return Pending(future)
