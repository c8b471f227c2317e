"""The methods of version 1.x, to place instances and zones and to report.

Each method parses its arguments once into typed documents, or raises an error
that names the place, and hands them to the scheduler. The methods run on the
consumer's thread, or on the redelivery thread, and never block.

What hosts, conductors and operators report is stored by the writer's own
thread.

Requests are checked against the policy before they are queued. The engine
checks the owners of the instances, groups and zones in a request, since it
has their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service.bus import wire
from scheduler_service.engine.messages import BatchItem, DeliveredMessage
from scheduler_service.model import (
    Aggregate,
    Entry,
    HostReport,
    Instance,
    Pool,
    Request,
    ZoneRequest,
    documents,
)
from scheduler_service.model.inventory import Document, Uuid, dashed
from scheduler_service.model.limits import NAME_LENGTH, Name
from scheduler_service.model.request import ExplainArguments
from scheduler_service.policies import Enforcer
from scheduler_service.request_context import RequestContext
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
from scheduler_service.store.workers import host_state_writer

VERSION = '1.2'
_MAX_ENTRIES = 1000
_MAX_REPORTED = 10_000
_TEXT = (
    'user_id', 'project_id', 'domain_id', 'system_scope', 'request_id',
    'global_request_id',
)  # fmt: skip


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
            caller = _caller_of(self._enforcer, incoming)
            request = documents.checked_request(parsed.request)
            if parsed.claim:
                _check_amounts(request)
            _authorize_hosts(caller, request, parsed.claim)
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
            caller = _caller_of(self._enforcer, incoming)
            pools = _candidates(parsed)
            zone = documents.zone(parsed.zone, named=pools is None)
            # With sent pools the reply reveals nothing about stored pools.
            _authorize_zone(caller, zone, parsed.keep or pools is not None)
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
        caller = _caller_of(self._enforcer, incoming)
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
        caller = _caller_of(self._enforcer, incoming)
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
        caller = _caller_of(self._enforcer, incoming)
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
        _caller_of(self._enforcer, incoming)
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
            _authorize_hosts(caller, request)
            return request
        if args.schedule_zone is not None:
            zone = documents.zone(args.schedule_zone)
            _authorize_zone(caller, zone)
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


class _ReportsArgs(Document):
    # An invalid report does not affect the others.
    hosts: list[Any]


class _HeartbeatArgs(Document):
    hosts: list[Name]


class _InstanceInfoArgs(Document):
    host_name: Name
    instance_info: list[dict[str, Any]] | dict[str, Any]


class _DeleteInfoArgs(Document):
    host_name: Name
    # msgspec 0.22 crashes at a union of a text with a pattern and a list.
    instance_uuid: str | list[str]


class _DeletedUuids(Document):
    instance_uuid: list[Uuid]


class _SyncArgs(Document):
    host_name: Name
    instance_uuids: list[Uuid]


class _AggregatesArgs(Document):
    aggregates: list[dict[str, Any]]


class _AggregateArgs(Document):
    aggregate: int | dict[str, Any]


class HostStateEndpoint:
    """State, use and instances of hosts, and aggregates.

    A report may be sent to one daemon or to all of them; it is stored once.
    Host reports and heartbeats are replied to when they are received, since
    the next one makes up for a loss. All others are replied to when they are
    stored.
    """

    def __init__(
        self, writer: host_state_writer.HostStateWriter, enforcer: Enforcer
    ) -> None:
        self._writer = writer
        self._enforcer = enforcer

    def update_host_state(self, incoming: wire.Request) -> dict[str, int]:
        """Receive host reports; the result is how many were received.

        A report is received as a whole or not at all. A refused report does
        not affect other hosts of the message.

        :raises InvalidRequest: the error of the first refused report; the
            facts have the numbers ``taken`` and ``refused``
        """
        parsed = self._parse(incoming, _ReportsArgs)
        documents.check_count(parsed.hosts, 'hosts', _MAX_REPORTED)
        reports: list[HostReport] = []
        faults: list[errors.InvalidRequest] = []
        for index, document in enumerate(parsed.hosts):
            try:
                reports.append(documents.host_report(document))
            except errors.InvalidRequest as fault:
                self._writer.refuse(_host_of(document), str(fault.args[0]))
                faults.append(_placed(fault, f'hosts[{index}]'))
        taken = self._writer.report(reports)
        if faults:
            counts = {'taken': taken, 'refused': len(faults)}
            faults[0].facts.update(counts)
            raise faults[0]
        return {'taken': taken}

    def heartbeat(self, incoming: wire.Request) -> dict[str, int]:
        """Receive heartbeats of service hosts; the result is how many."""
        parsed = self._parse(incoming, _HeartbeatArgs)
        documents.check_count(parsed.hosts, 'hosts', _MAX_REPORTED)
        documents.check_text(parsed.hosts, 'hosts')
        return {'taken': self._writer.heartbeat(parsed.hosts)}

    def update_instance_info(self, incoming: wire.Request) -> Pending:
        """Store instances of a host; the result is how many changed."""
        parsed = self._parse(incoming, _InstanceInfoArgs)
        info = parsed.instance_info
        listed = info if isinstance(info, list) else [info]
        with_host = [{'host': parsed.host_name, **each} for each in listed]
        instances = self._parse_each(
            with_host, 'instance_info', Instance, 'instance_reports'
        )
        for instance in instances:
            if instance.host != parsed.host_name:
                raise errors.InvalidRequest.at(
                    'instance_info',
                    f'{instance.uuid} is on {instance.host!r}, not on '
                    f'host_name {parsed.host_name!r}',
                )
        return self._put(
            host_state_writer.UpdateInstances(instances=instances)
        )

    def delete_instance_info(self, incoming: wire.Request) -> Pending:
        """Remove instances that left a host."""
        parsed = self._parse(incoming, _DeleteInfoArgs)
        uuid = parsed.instance_uuid
        listed = uuid if isinstance(uuid, list) else [uuid]
        documents.check_count(listed, 'instance_uuid', _MAX_REPORTED)
        uuids = documents.arguments(
            {'instance_uuid': listed}, _DeletedUuids
        ).instance_uuid
        return self._put(
            host_state_writer.DeleteInstances(
                host=parsed.host_name, uuids=[dashed(uuid) for uuid in uuids]
            )
        )

    def sync_instance_info(self, incoming: wire.Request) -> Pending:
        """Make these the only instances of a host."""
        parsed = self._parse(incoming, _SyncArgs)
        uuids = parsed.instance_uuids
        documents.check_count(uuids, 'instance_uuids', _MAX_REPORTED)
        documents.check_text(parsed.host_name, 'host_name')
        return self._put(
            host_state_writer.SyncInstances(
                host=parsed.host_name,
                uuids=[dashed(uuid) for uuid in uuids],
            )
        )

    def update_aggregates(self, incoming: wire.Request) -> Pending:
        """Add or update aggregates."""
        parsed = self._parse(incoming, _AggregatesArgs)
        listed = self._parse_each(
            parsed.aggregates, 'aggregates', Aggregate, 'aggregates'
        )
        return self._put(host_state_writer.UpdateAggregates(aggregates=listed))

    def delete_aggregate(self, incoming: wire.Request) -> Pending:
        """Remove an aggregate, given by its id or its document."""
        parsed = self._parse(incoming, _AggregateArgs)
        aggregate = parsed.aggregate
        number = (
            aggregate if isinstance(aggregate, int) else aggregate.get('id')
        )
        whole = isinstance(number, int) and not isinstance(number, bool)
        if not whole or not 0 <= number < 2**31:
            raise errors.InvalidRequest.at(
                'aggregate',
                'expected an id of 0 to 2147483647, or a document with one',
            )
        return self._put(host_state_writer.DeleteAggregate(id=number))

    def _parse_each(
        self, listed: list[Any], place: str, kind: type[Any], what: str
    ) -> list[Any]:
        """Parse each document of a list; an error names the index.

        :param what: under which errors are counted; the server logs them
        """
        if len(listed) > _MAX_REPORTED:
            self._writer.count_rejected(what)
        documents.check_count(listed, place, _MAX_REPORTED)
        parsed = []
        for index, document in enumerate(listed):
            try:
                parsed.append(documents.parse(document, kind))
            except errors.InvalidRequest as error:
                self._writer.count_rejected(what)
                raise _placed(error, f'{place}[{index}]') from None
        return parsed

    def _parse(self, incoming: wire.Request, kind: type[Any]) -> Any:
        parsed = parse_arguments(incoming.args, kind)
        _caller_of(self._enforcer, incoming)
        return parsed

    def _put(self, event: host_state_writer.Event) -> Pending:
        return Pending(self._writer.submit(event))


def _placed(error: errors.InvalidRequest, place: str) -> errors.InvalidRequest:
    inner = error.facts.get('at') or ''
    where = place + (f'.{inner}' if inner else '')
    text = str(error.args[0]).removeprefix(f'{inner}: ')
    return errors.InvalidRequest.at(where, text)


def _host_of(document: Any) -> str:
    """Return the service host of a refused report; '': none."""
    name = document.get('host') if isinstance(document, dict) else None
    try:
        documents.check_text(name)
        return msgspec.convert(name, Name)
    except (errors.InvalidRequest, msgspec.ValidationError):
        return ''


def _caller_of(enforcer: Enforcer, incoming: wire.Request) -> RequestContext:
    """Return the caller of a method, whose name is that of its rule.

    :raises InvalidRequest: the context does not name a caller
    :raises Forbidden: the policy does not let the caller use the method, not
        even for its own project
    """
    context = RequestContext(enforcer, credentials(incoming.ctxt))
    try:
        context.authorize(incoming.method, {'project_id': context.project_id})
    except errors.Forbidden as error:
        if context.project_id:
            raise
        raise errors.Forbidden(
            f'{error}: the context names no project (context.project_id)',
            **error.facts,
        ) from None
    return context


def _check(
    caller: RequestContext,
    rule: str,
    document: Request | ZoneRequest,
    *special: str,
) -> None:
    """Check a document's project, or the caller's, and further rules."""
    project_id = document.project_id = document.project_id or caller.project_id
    if project_id != caller.project_id:
        caller.authorize_project(rule, project_id, f'project {project_id}')
    for name in special:
        caller.authorize(f'{rule}:{name}', {'project_id': project_id})


def _authorize_hosts(
    caller: RequestContext, request: Request, claim: bool = True
) -> None:
    """Check a request; it belongs to the caller's project if it names none.

    :raises Forbidden: the policy does not allow it for this project, or not
        with these hosts, or not without a claim
    """
    special = ['forced_host'] if any(request.named_places) else []
    if not claim:
        special.append('dry_run')
    _check(caller, 'select_destinations', request, *special)


def _authorize_zone(
    caller: RequestContext, zone: ZoneRequest, keep: bool = True
) -> None:
    """Check a zone; it belongs to the caller's project if it names none.

    :param zone: without an id derived from its project, which may change
    :param keep: false: select among the stored pools, and store nothing
    :raises Forbidden: the policy does not allow it for this project, or not
        without storing the pool
    """
    _check(caller, 'schedule_zone', zone, *([] if keep else ['dry_run']))


def credentials(ctxt: Any) -> dict[str, Any]:
    """Return the caller's identity and roles, as policy rules read them.

    :raises InvalidRequest: the context is absent, names no user and is not a
        service's own with ``is_admin``, or a value has the wrong type or does
        not fit the store
    """
    if not ctxt or not isinstance(ctxt, Mapping):
        raise errors.InvalidRequest('context: required, but absent')
    values: dict[str, Any] = {}
    for name in _TEXT:
        value = ctxt.get(name) or None
        if value is not None and not isinstance(value, str):
            raise errors.InvalidRequest.at(
                f'context.{name}', 'expected a string'
            )
        values[name] = value
    documents.check_text(values, 'context')
    if len(values['project_id'] or '') > NAME_LENGTH:
        raise errors.InvalidRequest.at(
            'context.project_id', f'expected at most {NAME_LENGTH} characters'
        )
    roles = ctxt.get('roles') or []
    if not isinstance(roles, list | tuple) or not all(
        isinstance(role, str) for role in roles
    ):
        raise errors.InvalidRequest.at(
            'context.roles', 'expected a list of strings'
        )
    is_admin = ctxt.get('is_admin') is True
    if not values['user_id'] and not is_admin:
        raise errors.InvalidRequest.at(
            'context.user_id', 'required, but absent'
        )
    return {**values, 'roles': list(roles), 'is_admin': is_admin}
