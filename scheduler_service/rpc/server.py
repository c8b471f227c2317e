"""The RPC server: it parses on the consumer's thread and never blocks there.

Endpoints return a result, or a :class:`Pending` with the future of a result.
The thread that completes the future only appends it to what the consumer's
thread does, which replies.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple

import msgspec

from scheduler_service import errors, tracing
from scheduler_service.bus.wire import Consumer, Request, sent_at
from scheduler_service.engine.health import Health
from scheduler_service.engine.messages import (
    DeliveredMessage,
    ReplyFuture,
    RequestReturned,
    is_late,
)
from scheduler_service.model import documents, limits
from scheduler_service.rpc.delivery import AsFailure, Delivery, ReplyForm
from scheduler_service.store.ports.quarantine import Quarantine
from scheduler_service.store.ports.recall import Outcomes

LOG = logging.getLogger(__name__)
# Larger requests fail with PayloadTooLarge.
REQUEST_MAX_BYTES = 1024 * 1024
# How long a stop waits for replies whose queues are missing or full, in
# seconds: another daemon sends them, if their messages are unacknowledged.
_LINES_S = 2.0
_CHECK_S = 0.01


class Pending(NamedTuple):
    """A reply that follows when a future is done.

    :ivar future: of the result, or of an error; RequestReturned sends the
        message back to its queue
    """

    future: Future[Any]
    form: ReplyForm = ReplyForm()


class Dispatcher:
    """Dispatches a message to the method that it names, if it is served.

    :param endpoints: their public methods take the request
    :param version: the highest served version, such as ``1.1``
    :param failure: makes callers' errors from an error; None: they get the
        error unchanged
    :ivar methods: by name
    """

    def __init__(
        self,
        endpoints: Sequence[Any],
        version: str,
        failure: AsFailure | None = None,
    ) -> None:
        self.failure = failure
        self.methods = {
            name: getattr(endpoint, name)
            for endpoint in endpoints
            for name in methods(type(endpoint))
        }
        self._major, self._minor = (int(part) for part in version.split('.'))

    def dispatch(self, incoming: Request) -> Any:
        """Call the method; return a result or a :class:`Pending`.

        :raises InvalidRequest: the method or the version is not served, or an
            argument is invalid
        """
        message = incoming.message
        self._check_version(message.get('version', '1.0'))
        name = str(message.get('method'))[:100]
        method = self.methods.get(name)
        if method is None or message.get('namespace') is not None:
            raise errors.InvalidRequest(
                f'no such method: {name}',
                method=name,
                methods=sorted(self.methods),
            )
        return method(incoming)

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


def methods(endpoint: type[Any]) -> set[str]:
    """Return the names of the methods that clients may call."""
    return {name for name in vars(endpoint) if not name.startswith('_')}


class Server:
    """Dispatches requests, and replies when they are done.

    :param quarantine: counts deliveries of redelivered messages, and refuses
        a message that had too many
    :param redelivery_thread: works on redelivered messages, one by one
    :param outcomes: records outcomes before a reply
    :param executor: for records, large replies, and notifications
    :param health: gets the duration of each request
    :param tracer: makes traces of messages; None: there are none
    :ivar bus: takes the requests, and calls :meth:`take`
    """

    bus: Consumer

    def __init__(
        self,
        dispatcher: Dispatcher,
        quarantine: Quarantine,
        redelivery_thread: Executor,
        outcomes: Outcomes,
        executor: Executor,
        health: Health,
        tracer: tracing.Tracer | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._quarantine = quarantine
        self._redelivery_thread = redelivery_thread
        self._outcomes = outcomes
        self._executor = executor
        self._health = health
        self._tracer = tracer
        # Deliveries that are not done; the consumer's thread counts them.
        self._delivering = 0

    def take(self, request: Request) -> None:
        """Process a request; called by the consumer's thread."""
        request.taken_at = time.monotonic()
        trace = self._tracer and self._tracer.begin(
            str(request.method)[:100], request.ctxt
        )
        if trace:
            request.trace = trace
            request.ctxt.update(trace.headers())
        if request.redelivered:
            self._redelivery_thread.submit(self._dispatch_again, request)
        else:
            self._dispatch(request)

    def _dispatch_again(self, request: Request) -> None:
        """Dispatch a message that was delivered before, and wait for it."""
        if self.bus.is_unwanted(request):
            request.requeue()
            return
        message_id = stored_id(request.unique_id)
        try:
            self._quarantine.begin(message_id, request.message, request.ctxt)
            future = self._dispatch(request)
            if isinstance(future.exception(), RequestReturned):
                self._quarantine.cancel(message_id)
            else:
                self._quarantine.end(message_id)
        except errors.RequestQuarantined as error:
            self._refuse(request, error)
        except Exception:
            LOG.exception('A redelivered message failed')

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
        done = threading.Event()
        self.bus.call(done.set)
        return self._delivering if done.wait(_LINES_S) else 1

    def _dispatch(self, request: Request) -> Future[Any]:
        try:
            result = self._dispatcher.dispatch(request)
        except errors.SchedulerError as error:
            LOG.warning(
                'Rejected %s: %s: %s (%s)',
                str(request.method)[:100],
                error.name,
                error,
                delivered(request).caller(),
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
        future, form = pending
        if isinstance(future, ReplyFuture):
            future.returnable = request.shared
        if form.failure is None and self._dispatcher.failure is not None:
            form = form._replace(failure=self._dispatcher.failure)
        # Do not close over the future: that would be a reference cycle, and
        # replies would wait for the garbage collector.
        future.add_done_callback(
            functools.partial(self.bus.call, self._finish, request, form)
        )
        return future

    def _finish(
        self, request: Request, form: ReplyForm, future: Future[Any]
    ) -> None:
        fault = future.exception()
        if request.trace is not None:
            request.trace.replying_at = time.monotonic()
        if isinstance(fault, RequestReturned):
            if request.trace is not None:
                request.trace.end('returned')
            request.requeue()
            return
        if fault is None and is_late(request.deadline):
            # The caller has given up, so the claim would reach no caller. If
            # there is another copy, its reply may be in time.
            if form.undo is not None and not request.has_copies():
                form.undo(future.result())
            future = finished(error=errors.TooLate()).future
        self._delivering += 1
        Delivery(
            request,
            future,
            form,
            self._outcomes,
            self._executor,
            functools.partial(self._acknowledged, request),
            self._count_done,
        ).send()

    def _acknowledged(self, request: Request, outcome: str) -> None:
        verb = str(request.message.get('method'))
        self._health.observe(
            'request_duration_seconds',
            time.monotonic() - request.taken_at,
            verb if verb in self._dispatcher.methods else 'other',
            outcome,
        )
        if request.trace is not None:
            request.trace.end(outcome)

    def _count_done(self) -> None:
        self._delivering -= 1


def finished(
    result: Any = None, error: errors.SchedulerError | None = None
) -> Pending:
    """Return a reply whose result or error is set."""
    future: Future[Any] = Future()
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
    return Pending(future)


def stored_id(unique_id: Any) -> str:
    """Return the stored form of a message's id: a digest of a long id.

    The sender chooses the id, which may be any text.
    """
    text = str(unique_id)
    if len(text) <= limits.MESSAGE_ID_LENGTH and text.isprintable():
        return text
    return hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()


def delivered(incoming: Request) -> DeliveredMessage:
    """Return the sender and the delivery of a message.

    A message without an id is not recognised if it is delivered again.
    """
    ctxt = incoming.ctxt
    # Each pair of reply queue and project gets its fair share: many projects
    # may call through one service, and one project through several. The
    # project may be of any type, hashable or not.
    project = ctxt.get('project_id') or ''
    lane = incoming.reply_q or '', str(project)
    if not incoming.unique_id:
        return DeliveredMessage(lane=lane, context=ctxt, trace=incoming.trace)
    return DeliveredMessage(
        stored_id(incoming.unique_id),
        incoming.redelivered,
        sent_at(ctxt),
        lane,
        incoming.is_lost,
        ctxt,
        incoming.trace,
        incoming.came_after,
    )


def parse_arguments(
    args: Any, kind: type[Any], max_bytes: int = REQUEST_MAX_BYTES
) -> Any:
    """Return the arguments as an object of *kind*.

    :param max_bytes: the most that they may take, encoded as JSON
    :raises PayloadTooLarge: too many bytes, or nested too deeply
    :raises InvalidRequest: with the place and what was expected there
    """
    try:
        text = msgspec.json.encode(args)
    except (TypeError, ValueError, RecursionError) as fault:
        documents.check_depth(args)
        raise errors.InvalidRequest(f'cannot be read: {fault}') from None
    if text.count(b'{') + text.count(b'[') > documents.MAX_DEPTH:
        documents.check_depth(args)
    if len(text) > max_bytes:
        raise documents.too_large(len(text), max_bytes)
    return documents.arguments(args, kind)
