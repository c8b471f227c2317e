"""Engines without a message bus, and messages that reach them repeatedly."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service.bus.wire import Consumer, Publication, Request
from scheduler_service.engine.messages import DeliveredMessage
from scheduler_service.factory import build
from scheduler_service.model import documents
from scheduler_service.request_context import RequestContext
from scheduler_service.rpc.delivery import Delivery, ReplyForm
from scheduler_service.scheduler import Scheduler
from scheduler_service.store.connection import Store
from tests.support.documents import SMALL
from tests.support.services import new_conf
from tests.support.waiting import LIMIT_S

_NUMBERS = itertools.count(1)
_CALLER = RequestContext(None, {'roles': ['member']})
# Threads that wait for answers, and those that record outcomes.
_SERVERS, _RECORDS = (
    futures.ThreadPoolExecutor(64),
    (futures.ThreadPoolExecutor(2)),
)


class NotAnswered(Exception):
    """A daemon that has lost its connection does not refuse a request."""


def always() -> bool:
    """Return True: the connection of a message is lost."""
    return True


class _Bus(Consumer):
    """The bus of one delivery.

    :ivar returned: whether the message was given back
    """

    def __init__(self, lost: Callable[[], bool]) -> None:
        super().__init__('openstack')
        self._lost = lost
        self.returned = False

    def start(self) -> None:
        """Do nothing: nothing else is sent."""

    pause = resume = stop_consuming = close = start

    def call(self, work: Callable[..., None], *args: Any) -> None:
        """Run work."""
        work(*args)

    def publish(self, publication: Publication) -> None:
        """Take a reply."""
        publication.done(True)

    def acknowledge(self, request: Request) -> None:
        """Do nothing: tests deliver messages again."""

    def hold(self, request: Request) -> None:
        """Note that the message was given back."""
        self.returned = True

    def is_lost(self, request: Request) -> bool:
        """Whether another daemon has the message, too."""
        return self._lost()


def start_engine(store: Store, **options: Any) -> Scheduler:
    """Return an engine that runs; *options* are ``group__name`` values."""
    connection = store.engine.url.render_as_string(hide_password=False)
    conf = new_conf(database__connection=connection, **options)
    engine = build(conf, store)
    assert engine.start()
    return engine


def store_all(engine: Scheduler) -> None:
    """Have all that an engine which runs has decided so far be stored.

    It counts and records a request after it has answered it.
    """
    engine._loop.between_batches(lambda: None).result(LIMIT_S)
    engine.recorder.flush()


@dataclasses.dataclass
class Message:
    """A message of a caller, which may be delivered several times.

    :ivar verb: a method of the scheduler
    :ivar args: its arguments
    :ivar stamped: whether the caller says when it sent it
    :ivar refusal: of the first delivery, before which it was acknowledged:
        there is no other one
    """

    verb: str
    args: tuple[Any, ...]
    more: dict[str, Any] = dataclasses.field(default_factory=dict)
    stamped: bool = True
    id: str = ''
    sent_at: float = 0.0
    deliveries: int = 0
    refusal: Any = None

    def __post_init__(self) -> None:
        self.id = self.id or f'message-{next(_NUMBERS)}'
        self.sent_at = self.sent_at or time.time()

    def deliver(
        self, engine: Scheduler, lost: Callable[[], bool] = bool
    ) -> Any:
        """Deliver it; return the future of the answer.

        :param lost: whether the daemon has lost its connection, so that
            another daemon has the message, too: it answers only what it
            claimed
        """
        if self.refusal is not None:
            return self.refusal
        self.deliveries += 1
        again = self.deliveries > 1
        done = self._process(engine, again, lost)
        return _SERVERS.submit(self._answer, engine, done, again, lost)

    def _process(
        self, engine: Scheduler, again: bool, lost: Callable[[], bool]
    ) -> Any:
        delivered = DeliveredMessage(
            self.id,
            again,
            self.sent_at if self.stamped else None,
            is_lost=lost,
        )
        verb = getattr(engine, self.verb)
        return verb(*self.args, **self.more, message=delivered)

    def _answer(
        self,
        engine: Scheduler,
        done: Any,
        again: bool,
        lost: Callable[[], bool],
    ) -> Any:
        """Do what a server does before the caller gets the answer."""
        while True:
            futures.wait([done])
            bus = _Bus(lost)
            request = Request(bus, {}, {})
            request.redelivered = again
            sent = threading.Event()
            Delivery(
                request, done, ReplyForm(), engine.outcomes, _RECORDS,
                lambda outcome: None, sent.set,
            ).send()  # fmt: skip
            assert sent.wait(LIMIT_S)
            if not bus.returned:
                break
            again = True
            done = self._process(engine, again, lost)
        if done.exception() is not None:
            if lost():
                raise NotAnswered
            if not again:
                self.refusal = done
        return done.result()

    def run(self, engine: Scheduler) -> Any:
        """Deliver it and wait; return the answer as plain values."""
        return plain_answer(self.deliver(engine))


def plain_answer(future: Any) -> Any:
    """Return the result of a future, or its error, as plain values."""
    try:
        result = future.result(LIMIT_S)
    except errors.SchedulerError as error:
        return {'error': error.name}
    if isinstance(result, list) and result and hasattr(result[0], 'exception'):
        return [_plain_item(one) for one in result]
    return msgspec.to_builtins(result)


def _plain_item(item: Any) -> Any:
    fault = item.exception()
    if fault is not None:
        return {'error': errors.as_scheduler_error(fault).name}
    return msgspec.to_builtins(item.result())


def select(
    uuids: Sequence[str], move: bool = False, **request: Any
) -> Message:
    """Return a message that selects hosts for instances."""
    return Message(
        'select_destinations',
        (_request(uuids, request),),
        {'move': move} if move else {},
    )


def select_many(*entries: Any) -> Message:
    """Return a message with several requests: lists of uuids, or zones."""
    parsed = [
        documents.zone({'name': entry})
        if isinstance(entry, str)
        else _request(entry, {})
        for entry in entries
    ]
    return Message('schedule_many', (parsed, _CALLER))


def zone(name: str, **document: Any) -> Message:
    """Return a message that schedules a zone."""
    parsed = documents.zone({'name': name, **document})
    return Message('schedule_zone', (parsed, _CALLER))


def release(*uuids: str) -> Message:
    """Return a message that releases claims."""
    return Message('release', (list(uuids),))


def confirm(*uuids: str) -> Message:
    """Return a message that confirms claims."""
    return Message('confirm', (list(uuids),))


def drop_moves(*uuids: str) -> Message:
    """Return a message that drops moves."""
    return Message('drop_moves', (list(uuids),))


def _request(uuids: Sequence[str], document: dict[str, Any]) -> Any:
    asked = {'flavor': SMALL, **document}
    if uuids:
        asked['instance_uuids'] = list(uuids)
    return documents.request(asked)
