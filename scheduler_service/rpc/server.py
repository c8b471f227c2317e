"""The RPC server: parse in the polling thread, answer when it is decided.

Endpoints return a future; no thread waits for it. The answer is sent by the
thread that decided, where that takes no waiting, else by the replier's; only
then is the message acknowledged.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import Future
from typing import Any

import oslo_messaging
from oslo_messaging.rpc import server as stock

from scheduler_service import errors
from scheduler_service.engine.quarantine import Quarantine
from scheduler_service.model import plain
from scheduler_service.rpc.cast_replies import ReplyCallback
from scheduler_service.rpc.reply_publisher import ReplyPublisher

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class Pending:
    """An answer to come.

    :ivar future: its result, or its error
    :ivar shape: makes what is answered of the result, if it is not that
    :ivar tell: called with (answer, error), one of them None, before the
        reply; it runs again where it raises for want of a destination
    """

    future: Future[Any]
    shape: Callable[[Any], Any] | None = None
    tell: ReplyCallback | None = None


class Dispatcher:
    """Finds the method that a message names, in a version it can serve.

    :param endpoints: their METHODS take (context, arguments as a dict,
        message)
    """

    def __init__(self, endpoints: Sequence[Any], version: str) -> None:
        self._methods = {
            name: getattr(one, name)
            for one in endpoints
            for name in one.METHODS
        }
        self._major, self._minor = (int(part) for part in version.split('.'))

    def dispatch(self, incoming: Any) -> Any:
        """Call the method; return a result or a :class:`Pending`.

        :raises InvalidRequest: no such method, version or arguments
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
                f'version {str(version)[:20]} is asked, {served} is served',
                version=str(version)[:20],
                served=served,
            )


class LateAckServer(stock.RPCServer):  # type: ignore[misc]
    """oslo.messaging's server, less its pool of waiting threads.

    :param lane: takes the messages that were delivered before
    """

    def __init__(
        self,
        transport: Any,
        target: Any,
        dispatcher: Any,
        replier: ReplyPublisher,
        lane: RedeliveryWorker,
    ) -> None:
        super().__init__(transport, target, dispatcher, 'threading')
        self._replier = replier
        self._lane = lane

    def _on_incoming(self, incoming: Any) -> None:
        self._process_incoming(incoming)

    def _process_incoming(self, incoming: Any) -> None:
        """Dispatch one message; nothing may escape into the poller."""
        message = incoming[0]
        if getattr(message, 'redelivered', False):
            self._lane.put(message, self._dispatch)
        else:
            self._dispatch(message)

    def _dispatch(self, message: Any) -> Future[Any] | None:
        """Dispatch one message; return the future of what it asks for."""
        try:
            found = self.dispatcher.dispatch(message)
        except errors.SchedulerError as error:
            LOG.warning('Refused a request: %s: %s', error.name, error)
            self._replier.put(Delivery(message, None, error))
        except Exception as fault:
            LOG.exception('A request could not be taken')
            broken = errors.SchedulerError(
                f'Internal error: {type(fault).__name__}'
            )
            self._replier.put(Delivery(message, None, broken))
        else:
            if isinstance(found, Pending):
                # It does not name the future, which would then name itself.
                found.future.add_done_callback(
                    functools.partial(
                        self._decided, message, found.tell, found.shape
                    )
                )
                return found.future
            self._replier.put(Delivery(message, found, None))
        return None

    def _decided(
        self,
        message: Any,
        tell: ReplyCallback | None,
        shape: Callable[[Any], Any] | None,
        future: Future[Any],
    ) -> None:
        fault = future.exception()
        if fault is None:
            delivery = Delivery(message, future.result(), None, tell, shape)
        else:
            delivery = Delivery(message, None, errors.declared(fault), tell)
        if not delivery.at_once():
            self._replier.put(delivery)


class Delivery:
    """One answer on its way: tell, reply, acknowledge, in this order."""

    def __init__(
        self,
        message: Any,
        result: Any,
        error: errors.SchedulerError | None,
        tell: ReplyCallback | None = None,
        shape: Callable[[Any], Any] | None = None,
    ) -> None:
        self._message = message
        self._result = result
        self._error = error
        self._tell = tell
        self._shape = shape
        self._shaped = False

    def __call__(self) -> None:
        """Deliver; what was done is not done again at the next try."""
        self._take_shape()
        if self._tell is not None:
            self._tell(self._result, self._error)
            self._tell = None
        self._message.reply(self._result, self._failure())
        self._message.acknowledge()

    def at_once(self) -> bool:
        """Deliver in this thread if that takes no waiting; whether it did.

        It saves a caller who waits alone the hand-over between threads.
        """
        send = getattr(self._message, 'reply_at_once', None)
        if send is None or self._tell is not None:
            return False
        try:
            self._take_shape()
            sent = send(self._result, self._failure())
        except Exception:
            # The other way says what is wrong, and settles the message.
            LOG.debug('An answer takes the long way', exc_info=True)
            return False
        if sent:
            self._message.acknowledge()
        return bool(sent)

    def _take_shape(self) -> None:
        """Make of the result what can be sent; once."""
        if self._shaped:
            return
        result = self._result
        if self._shape is not None and self._error is None:
            result = self._shape(result)
        structs = getattr(self._message, 'takes_structs', False)
        if self._tell is not None or not structs:
            result = plain(result)
        self._result, self._shaped = result, True

    def _failure(self) -> Any:
        if self._error is None:
            return None
        return type(self._error), self._error, None

    def abandon(self) -> None:
        """Settle a message whose answer cannot be delivered."""
        self._message.acknowledge()


class RedeliveryWorker:
    """Works on messages that were delivered before, one after the other.

    If one of them ends this process, it is known which.

    :param quarantine: counts them, and says which are not to be tried
    """

    def __init__(
        self, quarantine: Quarantine, replier: ReplyPublisher
    ) -> None:
        self._quarantine = quarantine
        self._replier = replier
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._run, name='second-try', daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End; what waits is delivered to another daemon."""
        self._waiting.put(None)

    def put(
        self, message: Any, dispatch: Callable[[Any], Future[Any] | None]
    ) -> None:
        """Work on a message when those before it are done."""
        self._waiting.put((message, dispatch))

    def _run(self) -> None:
        while (task := self._waiting.get()) is not None:
            try:
                self._work(*task)
            except Exception:
                LOG.exception('A message that came again was not taken')

    def _work(
        self, message: Any, dispatch: Callable[[Any], Future[Any] | None]
    ) -> None:
        name = str(message.unique_id)
        try:
            self._quarantine.begin(name, message.message, message.ctxt)
        except errors.RequestPutAside as error:
            self._replier.put(Delivery(message, None, error))
            return
        future = dispatch(message)
        if future is not None:
            futures.wait([future])
        self._quarantine.end(name)


def new_server(
    transport: Any,
    target: tuple[str, str],
    endpoints: Sequence[Any],
    version: str,
    replier: ReplyPublisher,
    lane: RedeliveryWorker,
) -> LateAckServer:
    """Return a server for *endpoints*, not started yet.

    :param target: topic and name of the server
    """
    topic, name = target
    return LateAckServer(
        transport,
        oslo_messaging.Target(topic=topic, server=name),
        Dispatcher(endpoints, version),
        replier,
        lane,
    )
