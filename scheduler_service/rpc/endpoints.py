"""The methods of version 1.x that place instances and zones.

Each method parses its arguments once into typed documents, or raises an error
that names the place, and hands them to the scheduler. The methods run on the
consumer's thread, or on the redelivery thread, and never block.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service.bus import wire
from scheduler_service.engine.messages import BatchItem, DeliveredMessage
from scheduler_service.model import Entry, Pool, Request, documents
from scheduler_service.model.inventory import Document, Uuid, dashed
from scheduler_service.model.limits import Name
from scheduler_service.model.request import ExplainArguments
from scheduler_service.policies import Enforcer
from scheduler_service.request_context import RequestContext
from scheduler_service.rpc import authorization
from scheduler_service.rpc.delivery import (
    CastReply,
    ReplyForm,
    document_of,
    undo,
)
from scheduler_service.rpc.peers import Peer, Peers
from scheduler_service.rpc.server import (
    Pending,
    delivered,
    finished,
    parse_arguments,
)
from scheduler_service.scheduler import Scheduler

VERSION = '1.2'
_MAX_ENTRIES = 1000


class ReplyTo(Document):
    """The destination of the reply to a cast."""

    topic: Name
    server: Name | None = None
    exchange: Name | None = None
    method: str = 'scheduler_answer'

    def __post_init__(self) -> None:
        queue = f'{self.topic}.{self.server}' if self.server else self.topic
        for name in (queue, self.exchange):
            if name is not None and not wire.is_name(name):
                raise ValueError(
                    'names of queues and exchanges have at most '
                    f'{wire.LONGEST_NAME} bytes'
                )


class _SelectArgs(Document):
    request: dict[str, Any]
    claim: bool = True
    explain: bool = False
    reply_to: ReplyTo | None = None
    move: bool = False


class _ZoneArgs(Document):
    zone: dict[str, Any]
    keep: bool = True
    explain: bool = False
    reply_to: ReplyTo | None = None
    pools: list[dict[str, Any]] | None = None


class _EntryArgs(Document):
    select_destinations: dict[str, Any] | None = None
    schedule_zone: dict[str, Any] | None = None


class _ManyArgs(Document):
    requests: list[_EntryArgs]


class _InstancesArgs(Document):
    instances: list[Uuid]

    def __post_init__(self) -> None:
        self.instances = [dashed(uuid) for uuid in self.instances]


class _PingArgs(Document):
    peer: Peer | None = None
    recent: bool = False


class SchedulerEndpoint:
    """Selects hosts and pools, explains, and changes claims.

    :param notifier: publishes results; None: they are not published
    :param name: of this daemon on the topic
    :param peers: the other daemons on the topic
    """

    def __init__(
        self,
        scheduler: Scheduler,
        enforcer: Enforcer,
        name: str,
        peers: Peers,
        notifier: Any = None,
    ) -> None:
        self._scheduler = scheduler
        self._enforcer = enforcer
        self._notifier = notifier
        self._name = name
        self._peers = peers

    def select_destinations(self, incoming: wire.Request) -> Pending:
        """Select hosts for the instances of a request, and claim them."""
        message = delivered(incoming)

        def submit() -> Future[Any]:
            parsed = parse_arguments(incoming.args, _SelectArgs)
            caller = authorization.caller(self._enforcer, incoming)
            request = documents.checked_request(parsed.request)
            if parsed.claim:
                _check_amounts(request)
            authorization.select(caller, request, parsed.claim)
            return self._scheduler.select_destinations(
                request,
                parsed.claim,
                parsed.explain,
                incoming.deadline,
                parsed.move,
                caller,
                message,
            )

        args = incoming.args
        claims = isinstance(args, dict) and args.get('claim', True) is True
        undoing = partial(undo, self._scheduler, message) if claims else None
        return self._submit_with_reply(incoming, message, submit, undoing)

    def schedule_zone(self, incoming: wire.Request) -> Pending:
        """Select a pool for a zone, and store it."""
        message = delivered(incoming)

        def submit() -> Future[Any]:
            parsed = parse_arguments(incoming.args, _ZoneArgs)
            caller = authorization.caller(self._enforcer, incoming)
            pools = _candidates(parsed)
            zone = documents.zone(parsed.zone, named=pools is None)
            # With sent pools the reply reveals nothing about stored pools.
            authorization.zone(caller, zone, parsed.keep or pools is not None)
            return self._scheduler.schedule_zone(
                zone,
                caller,
                parsed.keep,
                parsed.explain,
                incoming.deadline,
                message,
                pools,
            )

        return self._submit_with_reply(incoming, message, submit)

    def schedule_many(self, incoming: wire.Request) -> Pending:
        """Schedule many requests; a result or an error for each, in order."""
        parsed = parse_arguments(incoming.args, _ManyArgs)
        caller = authorization.caller(self._enforcer, incoming)
        documents.check_count(parsed.requests, 'requests', _MAX_ENTRIES)
        entries = [_entry(entry, caller) for entry in parsed.requests]
        message = delivered(incoming)
        for sent, entry in zip(parsed.requests, entries, strict=True):
            if isinstance(entry, errors.SchedulerError):
                document = sent.select_destinations or sent.schedule_zone
                self._scheduler.reject(
                    'schedule_many', entry, document or {}, message
                )
        future = self._scheduler.schedule_many(
            entries, caller, incoming.deadline, message
        )
        undoing = partial(undo, self._scheduler, message)
        return Pending(future, ReplyForm(_serialize_outcomes, undo=undoing))

    def explain(self, incoming: wire.Request) -> Pending:
        """Return what would be selected and why; nothing is claimed."""
        parsed = parse_arguments(incoming.args, ExplainArguments)
        caller = authorization.caller(self._enforcer, incoming)
        request = documents.checked_request(parsed.request)
        request.project_id = request.project_id or caller.project_id
        future = self._scheduler.explain(
            request, parsed.host, incoming.deadline
        )
        return Pending(future)

    def release(self, incoming: wire.Request) -> Pending:
        """Release or confirm claims, or release the second ones of moves.

        The result is the instances that had such claims.
        """
        parsed = parse_arguments(incoming.args, _InstancesArgs)
        caller = authorization.caller(self._enforcer, incoming)
        change = getattr(self._scheduler, incoming.method)
        message = delivered(incoming)
        return Pending(
            change(parsed.instances, incoming.deadline, caller, message)
        )

    confirm = drop_moves = release

    def ping(self, incoming: wire.Request) -> dict[str, Any]:
        """Return the name, the version and the state of this daemon.

        A cast of another daemon is only recorded.
        """
        parsed = parse_arguments(incoming.args, _PingArgs)
        if parsed.peer is not None:
            self._peers.hear(parsed.peer)
            return {}
        authorization.caller(self._enforcer, incoming)
        introspection = self._scheduler.introspection
        return {
            'server': self._name,
            'version': VERSION,
            'peers': self._peers.names(),
            **introspection.status(),
            'recent': introspection.recent() if parsed.recent else None,
        }

    def _submit_with_reply(
        self,
        incoming: wire.Request,
        message: DeliveredMessage,
        submit: Callable[[], Future[Any]],
        undoing: Callable[[Any], None] | None = None,
    ) -> Pending:
        """Submit a request; its errors are cast and published as well.

        :param undoing: called with a result that cannot reach the caller
        """
        reply_to = _reply_to(incoming.args)
        cast = None
        if reply_to is not None or self._notifier is not None:
            cast = CastReply(incoming, reply_to, self._notifier)
        try:
            future = submit()
        except errors.SchedulerError as error:
            self._scheduler.reject(
                incoming.method, error, document_of(incoming.args), message
            )
            future = finished(error=error).future
        return Pending(future, ReplyForm(cast=cast, undo=undoing))


def _entry(args: _EntryArgs, caller: RequestContext) -> Entry:
    """Parse an entry of schedule_many; an error takes its place."""
    try:
        if args.select_destinations is not None:
            request = documents.checked_request(args.select_destinations)
            _check_amounts(request)
            authorization.select(caller, request)
            return request
        if args.schedule_zone is not None:
            zone = documents.zone(args.schedule_zone)
            authorization.zone(caller, zone)
            return zone.with_ids()
        return errors.InvalidRequest(
            'expected select_destinations or schedule_zone'
        )
    except errors.SchedulerError as error:
        return error


def _check_amounts(request: Request) -> None:
    """Check that a request for claims has any amount.

    :raises InvalidRequest: all amounts are 0, so that any host would fit
    """
    if not request.resources:
        raise errors.InvalidRequest.at(
            'flavor',
            'expected an amount above 0, such as vcpus, memory_mb, root_gb or '
            'the extra spec resources:CLASS',
        )


def _candidates(args: _ZoneArgs) -> dict[str, Pool] | None:
    """Return the pools that a caller sends; None: none are sent.

    :raises InvalidRequest: a pool is not valid, or ``keep`` is true
    """
    if args.pools is None:
        return None
    if args.keep:
        raise errors.InvalidRequest.at(
            'keep', 'expected false, since pools that are sent are not stored'
        )
    return documents.candidates(args.pools)


def _reply_to(args: Any) -> ReplyTo | None:
    """Return the reply's destination, even if other arguments are invalid."""
    document = args.get('reply_to') if isinstance(args, dict) else None
    try:
        return msgspec.convert(document, ReplyTo | None)
    except msgspec.ValidationError:
        return None


def _serialize_outcomes(items: list[BatchItem]) -> list[dict[str, Any]]:
    """Return ``{result: ...}`` or ``{error: ...}`` for each entry."""
    return [
        {'result': item.result()}
        if (fault := item.exception()) is None
        else {'error': errors.as_scheduler_error(fault).to_dict()}
        for item in items
    ]
