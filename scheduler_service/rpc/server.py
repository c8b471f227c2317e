"""The RPC server: it parses on the polling thread and never blocks there.

Endpoints return a result, or a :class:`Pending` with the future of a result.
The thread that completes the future replies, if that cannot block; else a
thread of the reply publisher replies. The message is acknowledged afterwards.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import oslo_messaging
from oslo_messaging.rpc import server as stock

from scheduler_service import errors, tracing
from scheduler_service.engine.jobs import ReplyFuture, RequestReturned, is_late
from scheduler_service.rpc.call_monitor import CallMonitor
from scheduler_service.rpc.cast_replies import ReplyCallback
from scheduler_service.rpc.delivery import Delivery, RedeliveryWorker
from scheduler_service.rpc.incoming import deadline, has_copies
from scheduler_service.rpc.reply_publisher import ReplyPublisher

LOG = logging.getLogger(__name__)
AsFailure = Callable[[errors.SchedulerError], Exception]


@dataclasses.dataclass(slots=True)
class Pending:
    """A reply that follows when a future is done.

    :ivar future: of the result, or of an error; RequestReturned sends the
        message back to its queue
    :ivar serializer: makes plain values of the result; None: the result is
        sent unchanged
    :ivar on_reply: called with (result, error), either None, before the
        reply; again if its destination does not exist yet
    :ivar failure: makes the caller's error from an error; None: that of the
        dispatcher
    :ivar undo: called with a result that cannot reach the caller
    """

    future: Future[Any]
    serializer: Callable[[Any], Any] | None = None
    on_reply: ReplyCallback | None = None
    failure: AsFailure | None = None
    undo: Callable[[Any], None] | None = None


class _Reply(NamedTuple):
    """The fields of :class:`Pending` without the future."""

    serializer: Callable[[Any], Any] | None
    on_reply: ReplyCallback | None
    failure: AsFailure | None
    undo: Callable[[Any], None] | None


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
        if not isinstance(message, dict):
            raise errors.InvalidRequest('the message is not an object')
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


class LateAckServer(stock.RPCServer):  # type: ignore[misc]
    """oslo.messaging's server without its pool of waiting threads.

    :param publisher: sends replies that the completing thread cannot send
    :param redelivery_worker: gets messages that were delivered before
    :param monitor: sends heartbeats to callers that expect them
    :ivar tracer: makes traces of messages; None: there are none
    """

    def __init__(
        self,
        transport: Any,
        target: Any,
        dispatcher: Any,
        publisher: ReplyPublisher,
        redelivery_worker: RedeliveryWorker,
        monitor: CallMonitor,
    ) -> None:
        super().__init__(transport, target, dispatcher, 'threading')
        self.tracer: tracing.Tracer | None = None
        self._publisher = publisher
        self._redelivery_worker = redelivery_worker
        self._monitor = monitor

    def _on_incoming(self, incoming: Any) -> None:
        self._process_incoming(incoming)

    def _process_incoming(self, incoming: Any) -> None:
        """Dispatch a message; no exception may escape into the poller."""
        message = incoming[0]
        if self.tracer is not None:
            self._begin_trace(message)
        self._monitor.watch(message)
        if getattr(message, 'redelivered', False):
            self._redelivery_worker.put(
                message, self._dispatch, self.dispatcher.failure
            )
        else:
            self._dispatch(message)

    def _begin_trace(self, message: Any) -> None:
        """Begin the trace of a message; the work for it has the same."""
        assert self.tracer is not None
        content = message.message
        method = content.get('method') if isinstance(content, dict) else None
        trace = self.tracer.begin(str(method)[:100], message.ctxt)
        if trace is not None:
            message.trace = trace
            if isinstance(message.ctxt, dict):
                message.ctxt.update(trace.headers())

    def _dispatch(self, message: Any) -> Future[Any] | None:
        """Dispatch a message; return its future; None: it is done."""
        failure = self.dispatcher.failure
        try:
            result = self.dispatcher.dispatch(message)
        except errors.SchedulerError as error:
            LOG.warning('Rejected a request: %s: %s', error.name, error)
            refusal = Delivery(message, None, error, failure=failure)
            self._publisher.put(refusal)
        except Exception as fault:
            LOG.exception('A request could not be dispatched')
            internal = errors.SchedulerError(
                f'Internal error: {type(fault).__name__}'
            )
            refusal = Delivery(message, None, internal, failure=failure)
            self._publisher.put(refusal)
        else:
            if isinstance(result, Pending):
                return self._wait(message, result, failure)
            self._publisher.put(Delivery(message, result, None))
        return None

    def _wait(
        self, message: Any, pending: Pending, failure: AsFailure | None
    ) -> Future[Any]:
        """Reply to a message when its future is done."""
        future = pending.future
        if isinstance(future, ReplyFuture):
            future.returnable = getattr(message, 'shared', False)
        reply = _Reply(
            pending.serializer,
            pending.on_reply,
            pending.failure or failure,
            pending.undo,
        )
        # Do not close over the future: that would be a reference cycle, and
        # replies would wait for the garbage collector.
        future.add_done_callback(
            functools.partial(self._reply, message, reply)
        )
        return future

    def _reply(self, message: Any, reply: _Reply, future: Future[Any]) -> None:
        """Reply with the future's result; runs on the completing thread."""
        fault = future.exception()
        trace = getattr(message, 'trace', None)
        if trace is not None:
            trace.replying_at = time.monotonic()
        if isinstance(fault, RequestReturned):
            message.requeue()
            if trace is not None:
                trace.end('returned')
            return
        if fault is None and is_late(deadline(message)):
            # The caller has given up, so the claim would reach no caller. If
            # there is another copy, its reply may be in time.
            if reply.undo is not None and not has_copies(message):
                reply.undo(future.result())
            fault = errors.TooLate()
        if fault is None:
            delivery = Delivery(
                message,
                future.result(),
                None,
                reply.on_reply,
                reply.serializer,
                undo=reply.undo,
            )
        else:
            error = errors.as_scheduler_error(fault)
            delivery = Delivery(
                message, None, error, reply.on_reply, failure=reply.failure
            )
        if not delivery.try_send_now():
            self._publisher.put(delivery, delivery.refused)


def new_server(
    transport: Any,
    target: oslo_messaging.Target,
    dispatcher: Dispatcher,
    publisher: ReplyPublisher,
    redelivery_worker: RedeliveryWorker,
    monitor: CallMonitor,
) -> LateAckServer:
    """Return a server on a target, not started yet.

    :param target: exchange, topic and name of the server; with ``fanout`` it
        also gets casts to every server of the topic
    """
    return LateAckServer(
        transport, target, dispatcher, publisher, redelivery_worker, monitor
    )
