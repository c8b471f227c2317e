"""What can be asked over the bus, version by version.

Each method parses its arguments once into typed documents, or raises a clear
error, and hands a job to the engine.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service.engine.jobs import BatchItem
from scheduler_service.engine.request_context import RequestContext
from scheduler_service.engine.scheduler import Scheduler
from scheduler_service.model import Entry, SelectEntry, ZoneEntry, documents
from scheduler_service.model.inventory import Document, Uuid, dashed
from scheduler_service.rpc.arguments import ArgumentParser
from scheduler_service.rpc.cast_replies import Answers
from scheduler_service.rpc.context import credentials
from scheduler_service.rpc.server import Pending

LOG = logging.getLogger(__name__)
VERSION = '1.1'
_MOST = 1000


class ReplyTo(Document):
    """Who gets the answer to a cast."""

    topic: str
    server: str | None = None
    exchange: str | None = None
    method: str = 'scheduler_answer'


class _Select(Document):
    request: dict[str, Any]
    claim: bool = True
    explain: bool = False
    reply_to: ReplyTo | None = None
    move: bool = False


class _Zone(Document):
    zone: dict[str, Any]
    keep: bool = True
    explain: bool = False
    reply_to: ReplyTo | None = None


class _One(Document):
    select_destinations: dict[str, Any] | None = None
    schedule_zone: dict[str, Any] | None = None


class _Many(Document):
    requests: list[_One]


class _Explain(Document):
    request: dict[str, Any]
    host: str | None = None


class _Instances(Document):
    instances: list[Uuid]

    def __post_init__(self) -> None:
        self.instances = [dashed(one) for one in self.instances]


class _Nothing(Document):
    pass


class SchedulerEndpoint:
    """What can be asked of the scheduler.

    :param reader: of arguments
    """

    METHODS = frozenset(
        (
            'select_destinations',
            'schedule_zone',
            'schedule_many',
            'explain',
            'release',
            'confirm',
            'drop_moves',
            'ping',
        )
    )

    def __init__(
        self,
        scheduler: Scheduler,
        enforcer: Any,
        answers: Answers,
        reader: ArgumentParser,
        name: str,
    ) -> None:
        self._scheduler = scheduler
        self._enforcer = enforcer
        self._answers = answers
        self._parse = reader.parse
        self._name = name

    def select_destinations(
        self, ctxt: Any, args: Any, incoming: Any
    ) -> Pending:
        """Choose hosts for the instances of a request, and claim them."""

        def put() -> Future[Any]:
            asked = self._parse(args, _Select)
            credentials(ctxt)
            return self._scheduler.select_destinations(
                documents.request(asked.request),
                asked.claim,
                asked.explain,
                _deadline(incoming),
                asked.move,
            )

        return self._told(ctxt, 'select_destinations', args, put)

    def schedule_zone(self, ctxt: Any, args: Any, incoming: Any) -> Pending:
        """Choose a pool for a zone, and keep it."""

        def put() -> Future[Any]:
            asked = self._parse(args, _Zone)
            caller = RequestContext(self._enforcer, credentials(ctxt))
            return self._scheduler.schedule_zone(
                documents.zone(asked.zone),
                caller,
                asked.keep,
                asked.explain,
                _deadline(incoming),
            )

        return self._told(ctxt, 'schedule_zone', args, put)

    def schedule_many(self, ctxt: Any, args: Any, incoming: Any) -> Pending:
        """Decide many requests; an answer or an error for each, in order."""
        asked = self._parse(args, _Many)
        caller = RequestContext(self._enforcer, credentials(ctxt))
        if len(asked.requests) > _MOST:
            raise errors.PayloadTooLarge(
                f'requests: at most {_MOST}, got {len(asked.requests)}'
            )
        future = self._scheduler.schedule_many(
            [_entry(one) for one in asked.requests],
            caller,
            _deadline(incoming),
        )
        return Pending(future, _outcomes)

    def explain(self, ctxt: Any, args: Any, incoming: Any) -> Pending:
        """Say what would happen and why; nothing is claimed."""
        asked = self._parse(args, _Explain)
        credentials(ctxt)
        request = documents.request(asked.request)
        future = self._scheduler.explain(
            request, asked.host, _deadline(incoming)
        )
        return Pending(future)

    def release(self, ctxt: Any, args: Any, incoming: Any) -> Pending:
        """Give back claims; the answer is the instances that held one."""
        return self._on_claims(ctxt, args, incoming, self._scheduler.release)

    def confirm(self, ctxt: Any, args: Any, incoming: Any) -> Pending:
        """Confirm claims; the answer is those that were not before."""
        return self._on_claims(ctxt, args, incoming, self._scheduler.confirm)

    def drop_moves(self, ctxt: Any, args: Any, incoming: Any) -> Pending:
        """Give back second claims; the answer is who was to move."""
        return self._on_claims(
            ctxt, args, incoming, self._scheduler.drop_moves
        )

    def _on_claims(
        self,
        ctxt: Any,
        args: Any,
        incoming: Any,
        verb: Callable[[list[str], float | None], Future[Any]],
    ) -> Pending:
        asked = self._parse(args, _Instances)
        credentials(ctxt)
        return Pending(verb(asked.instances, _deadline(incoming)))

    def ping(self, ctxt: Any, args: Any, incoming: Any) -> dict[str, Any]:
        """Say who answers and how it is."""
        self._parse(args, _Nothing)
        return {
            'server': self._name,
            'version': VERSION,
            **self._scheduler.status(),
        }

    def _told(
        self,
        ctxt: Any,
        method: str,
        args: Any,
        put: Callable[[], Future[Any]],
    ) -> Pending:
        """Put a job; its answer, or what is wrong with it, is told about."""
        tell = self._answers.teller(ctxt, method, args, _reply_to(args))
        try:
            future = put()
        except errors.SchedulerError as error:
            LOG.warning('Refused %s: %s: %s', method, error.name, error)
            future = _failed(error)
        return Pending(future, tell=tell)


def _entry(one: _One) -> Entry:
    """Parse an entry of schedule_many; an error takes its place."""
    try:
        if one.select_destinations is not None:
            return SelectEntry(documents.request(one.select_destinations))
        if one.schedule_zone is not None:
            return ZoneEntry(documents.zone(one.schedule_zone))
        return errors.InvalidRequest(
            'expected select_destinations or schedule_zone'
        )
    except errors.SchedulerError as error:
        return error


def _reply_to(args: Any) -> ReplyTo | None:
    """Return who gets the answer, even where the rest is wrong."""
    named = args.get('reply_to') if isinstance(args, dict) else None
    try:
        return msgspec.convert(named, ReplyTo | None)
    except msgspec.ValidationError:
        return None


def _failed(error: errors.SchedulerError) -> Future[Any]:
    """Return a future that holds an error."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


def _deadline(incoming: Any) -> float | None:
    """Return when the caller stops waiting; None: a cast waits for ever."""
    timeout = getattr(incoming, 'client_timeout', None)
    return time.monotonic() + float(timeout) if timeout else None


def _outcomes(parts: list[BatchItem]) -> list[dict[str, Any]]:
    outcomes: list[dict[str, Any]] = []
    for part in parts:
        fault = part.exception()
        if fault is None:
            outcomes.append({'result': part.result()})
        else:
            outcomes.append({'error': errors.declared(fault).to_dict()})
    return outcomes
