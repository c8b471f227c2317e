"""Delivery of a reply: cast of the result, reply, acknowledgement.

A request is acknowledged when its reply is confirmed. A refused request is
acknowledged just before its reply, on the same channel: once the refusal
arrives, no daemon gets the request again. All of it runs on the consumer's
thread, but for slow work: records of outcomes, the encoding of large results,
and notifications.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, NamedTuple

import oslo_messaging

from scheduler_service import errors
from scheduler_service.bus import wire
from scheduler_service.bus.wire import Publication, Request
from scheduler_service.engine.messages import BatchItem, DeliveredMessage
from scheduler_service.model import HostsAnswer, plain
from scheduler_service.rpc import transport
from scheduler_service.rpc.client import ContextSerializer
from scheduler_service.scheduler import Scheduler
from scheduler_service.store.ports.recall import (
    Outcome,
    OutcomeDiffers,
    Outcomes,
)

LOG = logging.getLogger(__name__)
# A result with more placements is encoded elsewhere, since all other requests
# would wait for it: 20,000 take a tenth of a second.
_MOST_PLACEMENTS = 256
AsFailure = Callable[[errors.SchedulerError], Exception]


class CastReply:
    """The outcome of a message, for its ``reply_to`` and as a notification.

    Event types are ``scheduler.METHOD.end`` with the result and
    ``scheduler.METHOD.error`` with the error.

    :param request: the message; the id of an invalid request is used too
    :param reply_to: the destination of the cast; None: no cast
    :param notifier: None: no notification
    """

    def __init__(self, request: Request, reply_to: Any, notifier: Any) -> None:
        self.reply_to = reply_to
        self.notifier = notifier
        self._request = request
        self._reply: dict[str, Any] = {}

    def set_outcome(
        self, result: Any, error: errors.SchedulerError | None
    ) -> None:
        """Set the result or the error.

        :param result: plain values; None with an error
        """
        document = result or document_of(self._request.args)
        self._reply = {
            'verb': self._request.method,
            'request_id': document.get('request_id') or None,
            'result': result,
            'error': error.to_dict() if error else None,
        }

    def message(self) -> dict[str, Any]:
        """Return the message of the cast."""
        method = self.reply_to.method
        content = {'method': method, 'args': self._reply, 'version': '1.0'}
        return wire.cast(self._request.ctxt, content)

    def notify(self) -> None:
        """Publish the notification; a failure is only logged."""
        failed = self._reply['error'] is not None
        publish = self.notifier.error if failed else self.notifier.info
        method = self._request.method
        event = f'scheduler.{method}.{"error" if failed else "end"}'
        try:
            publish(self._request.ctxt, event, self._reply)
        except Exception as fault:
            LOG.warning('Notification %s was not published: %s', event, fault)


def document_of(args: Any) -> dict[str, Any]:
    """Return the request or zone in arguments; empty: there is none."""
    for name in ('request', 'zone'):
        document = args.get(name) if isinstance(args, dict) else None
        if isinstance(document, dict):
            return document
    return {}


def new_notifier(conf: Any, url: str | None, publisher: str) -> Any:
    """Return a notifier, or None where no driver is configured.

    :param url: of the bus, in place of the option's
    """
    if not transport.publishes(conf):
        return None
    return oslo_messaging.Notifier(
        transport.for_notifications(conf, url),
        publisher_id=publisher,
        serializer=ContextSerializer(),
    )


class ReplyForm(NamedTuple):
    """How a result becomes a reply.

    :ivar serializer: makes plain values of the result; None: the result is
        sent unchanged
    :ivar cast: the cast and the notification of the result; None: neither
    :ivar failure: makes the caller's error from an error; None: that of the
        dispatcher, which may send it unchanged
    :ivar undo: called with a result that cannot reach the caller
    """

    serializer: Callable[[Any], Any] | None = None
    cast: CastReply | None = None
    failure: AsFailure | None = None
    undo: Callable[[Any], None] | None = None


class Delivery:
    """A result or an error, and the request that it is for.

    :param future: has the result or the error
    :param outcomes: records outcomes before the reply
    :param executor: for slow work
    :param on_acknowledged: called with the outcome: ``answered``, or the name
        of the error
    :param on_done: called when the request is acknowledged and its reply is
        sent or given up, or when the request was given back
    """

    def __init__(
        self,
        request: Request,
        future: Future[Any],
        form: ReplyForm,
        outcomes: Outcomes,
        executor: Executor,
        on_acknowledged: Callable[[str], None],
        on_done: Callable[[], None],
    ) -> None:
        self._request = request
        self._bus = request.consumer
        fault = future.exception()
        self._error = (
            None if fault is None else errors.as_scheduler_error(fault)
        )
        self._result = None if fault else future.result()
        self._form = form
        self._outcomes = outcomes
        self._executor = executor
        self._on_acknowledged = on_acknowledged
        self._on_done = on_done
        self._undo = None if fault else form.undo
        # The entries of a request, or all of it: each has its own outcome.
        items = _items(self._result)
        self._items = items or [future]
        # Whether nothing was changed.
        self._refused = fault is not None or (
            bool(items) and all(item.exception() for item in items)
        )
        self._acknowledged = False
        self._reply = b''
        self._cast = b''

    def send(self) -> None:
        """Send the cast and the reply, and acknowledge the request."""
        unrecorded = self._unrecorded()
        if unrecorded or _placements(self._result) > _MOST_PLACEMENTS:
            self._executor.submit(self._prepare_elsewhere, unrecorded)
        else:
            self._encode()()

    def _unrecorded(self) -> list[Outcome]:
        """Return the outcomes that have to be recorded before the reply.

        These are results that no transaction recorded. Refusals count where
        another daemon may process a copy of the message: a message with any
        results is acknowledged after its reply.
        """
        may_change = not self._refused or self._request.has_copies()
        outcomes = []
        for item in self._items:
            unrecorded = getattr(item, 'unrecorded', None)
            if unrecorded is None:
                continue
            fault = item.exception()
            if fault is None:
                outcomes.append(Outcome(unrecorded, item.result(), None))
            elif may_change:
                error = errors.as_scheduler_error(fault)
                outcomes.append(Outcome(unrecorded, None, error))
        return outcomes

    def _prepare_elsewhere(self, unrecorded: Sequence[Outcome]) -> None:
        try:
            if unrecorded:
                self._outcomes.record(unrecorded, self._request.has_copies())
        except (OutcomeDiffers, errors.StoreUnavailable):
            # The database does not answer, or another copy of the message has
            # another outcome: it has to be processed again.
            self._request.requeue()
            self._bus.call(self._on_done)
            return
        except Exception:
            LOG.exception('The outcome of a request could not be recorded')
        self._bus.call(self._encode())

    def _encode(self) -> Callable[[], None]:
        """Encode reply and cast; return the next step."""
        form, request, error = self._form, self._request, self._error
        try:
            result = self._result
            if form.serializer is not None and error is None:
                result = form.serializer(result)
            if form.cast is not None:
                result = plain(result)
                form.cast.set_outcome(result, error)
                if form.cast.reply_to is not None:
                    self._cast = wire.encode(form.cast.message())
            if request.is_call:
                failure: BaseException | None = error
                if error is not None and form.failure is not None:
                    failure = form.failure(error)
                self._reply = wire.reply(request.msg_id, result, failure)
        except Exception:
            LOG.exception('Dropped a reply that could not be sent')
            return self._abandon
        return self._send_cast if self._cast else self._notify

    def _send_cast(self) -> None:
        assert self._form.cast is not None
        to = self._form.cast.reply_to
        self._publish(
            Publication(
                '/'.join((to.exchange or '', to.topic, to.server or '')),
                self._cast,
                self._after_cast,
                self._acknowledge,
                to.exchange or self._bus.exchange,
                f'{to.topic}.{to.server}' if to.server else to.topic,
            )
        )

    def _after_cast(self, is_queued: bool) -> None:
        if is_queued:
            # A receiver has the result.
            self._undo = None
            self._notify()
        else:
            self._abandon()

    def _notify(self) -> None:
        """Publish the notification, which may wait for its broker."""
        cast = self._form.cast
        if cast is None or cast.notifier is None:
            self._send_reply()
            return

        def notify() -> None:
            cast.notify()
            self._bus.call(self._send_reply)

        self._executor.submit(notify)

    def _send_reply(self) -> None:
        if self._request.reply_q is None:
            self._after_reply(True)
            return
        self._publish(
            Publication(
                self._request.reply_q,
                self._reply,
                self._after_reply,
                self._acknowledge,
            )
        )

    def _publish(self, publication: Publication) -> None:
        """Publish; acknowledge a refused request just before that."""
        self._request.settled = True
        if self._refused and not self._acknowledged:
            self._acknowledge(publication)
        else:
            self._bus.publish(publication)

    def _after_reply(self, is_queued: bool) -> None:
        if is_queued:
            self._acknowledge()
            self._on_done()
        else:
            self._abandon()

    def _acknowledge(self, refusal: Publication | None = None) -> None:
        """Acknowledge the request, once.

        This precedes the reply where nothing was changed, or where many
        replies wait for queues that are missing or full.

        :param refusal: the first publication on a request that changed
            nothing
        """
        if self._acknowledged:
            return
        self._acknowledged = self._request.settled = True
        if refusal is None:
            self._bus.acknowledge(self._request)
        else:
            self._bus.refuse(self._request, refusal)
        error = self._error
        self._on_acknowledged('answered' if error is None else error.name)

    def _abandon(self) -> None:
        """Acknowledge a request whose reply cannot be delivered.

        The result is undone, since it reaches no caller.
        """
        self._acknowledge()
        undo, self._undo = self._undo, None
        if undo is not None:
            undo(self._result)
        self._on_done()


def _items(result: Any) -> list[Any]:
    if isinstance(result, list) and result and type(result[0]) is BatchItem:
        return result
    return []


def _placements(result: Any) -> int:
    if isinstance(result, HostsAnswer):
        return len(result.placements)
    return sum(_placements(item.result()) for item in _items(result))


def undo(scheduler: Scheduler, message: DeliveredMessage, result: Any) -> None:
    """Release the claims of a result that reached no caller.

    Any thread may call this. Claims for a message without an id stay.

    :param result: placements of one request, or the items of many
    """
    if not message.id:
        return
    answers = [
        None if item.exception() else item.result() for item in _items(result)
    ]
    for entry, answer in enumerate(answers or [result]):
        if not isinstance(answer, HostsAnswer):
            continue
        uuids = [placement.instance_uuid for placement in answer.placements]
        LOG.warning(
            'The answer on %d instances did not reach its caller, their '
            'claims are released: %s',
            len(uuids),
            ', '.join(uuids[:5]),
        )
        try:
            done = scheduler.undo(uuids, message, entry)
        except errors.ServiceBusy as error:
            LOG.warning('Claims of a lost answer stay: %s', error)
            scheduler.health.count('answers_undone', 'failed')
        else:
            done.add_done_callback(partial(_count_undone, scheduler))


def _count_undone(scheduler: Scheduler, done: Future[Any]) -> None:
    fault = done.exception()
    if fault is not None:
        LOG.warning('Claims of a lost answer stay: %s', fault)
        scheduler.health.count('answers_undone', 'failed')
    else:
        kept = 'released' if done.result() else 'kept'
        scheduler.health.count('answers_undone', kept)
