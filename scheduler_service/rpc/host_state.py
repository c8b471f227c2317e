"""The methods with which hosts, conductors and operators report state.

They run on the polling thread, or on the redelivery thread; nothing here
waits. The writer's own thread stores what is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from scheduler_service import errors
from scheduler_service.engine import events
from scheduler_service.engine.host_state_writer import HostStateWriter
from scheduler_service.model import documents
from scheduler_service.model.inventory import Document, Name, Uuid, dashed
from scheduler_service.rpc.arguments import ArgumentParser
from scheduler_service.rpc.context import credentials
from scheduler_service.rpc.server import Pending

_MAX_ENTRIES = 10_000


class _ReportsArgs(Document):
    hosts: list[dict[str, Any]]


class _HeartbeatArgs(Document):
    hosts: list[Name]


class _InstanceInfoArgs(Document):
    host_name: Name
    instance_info: list[dict[str, Any]] | dict[str, Any]


class _DeleteInfoArgs(Document):
    host_name: Name
    instance_uuid: Uuid | list[Uuid]


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
    Host reports and heartbeats get their reply when they are received, since
    the next one makes up for one that is lost. Everything else gets it when it
    is stored.
    """

    METHODS = frozenset(
        (
            'update_host_state',
            'heartbeat',
            'update_instance_info',
            'delete_instance_info',
            'sync_instance_info',
            'update_aggregates',
            'delete_aggregate',
        )
    )

    def __init__(
        self, writer: HostStateWriter, parser: ArgumentParser
    ) -> None:
        self._writer = writer
        self._parse = parser.parse

    def update_host_state(
        self, ctxt: Any, args: Any, incoming: Any
    ) -> dict[str, int]:
        """Receive host reports; the result is how many were received."""
        parsed = self._parse(args, _ReportsArgs)
        credentials(ctxt)
        reports = _each(parsed.hosts, 'hosts', documents.host_report)
        return {'taken': self._writer.report(reports)}

    def heartbeat(self, ctxt: Any, args: Any, incoming: Any) -> dict[str, int]:
        """Receive heartbeats of service hosts; the result is how many."""
        parsed = self._parse(args, _HeartbeatArgs)
        credentials(ctxt)
        _check_count(parsed.hosts, 'hosts')
        documents.check_text(parsed.hosts, 'hosts')
        return {'taken': self._writer.heartbeat(parsed.hosts)}

    def update_instance_info(
        self, ctxt: Any, args: Any, incoming: Any
    ) -> Pending:
        """Store instances of a host; the result is how many changed."""
        parsed = self._parse(args, _InstanceInfoArgs)
        credentials(ctxt)
        info = parsed.instance_info
        listed = info if isinstance(info, list) else [info]
        with_host = [{'host': parsed.host_name, **each} for each in listed]
        instances = _each(with_host, 'instance_info', documents.instance)
        for instance in instances:
            if instance.host != parsed.host_name:
                raise errors.InvalidRequest(
                    f'instance_info: {instance.uuid} is on '
                    f'{instance.host!r}, not on host_name '
                    f'{parsed.host_name!r}',
                    at='instance_info',
                )
        return self._put(events.UpdateInstances(instances=instances))

    def delete_instance_info(
        self, ctxt: Any, args: Any, incoming: Any
    ) -> Pending:
        """Remove instances that a host does not have any more."""
        parsed = self._parse(args, _DeleteInfoArgs)
        credentials(ctxt)
        named = parsed.instance_uuid
        uuids = named if isinstance(named, list) else [named]
        _check_count(uuids, 'instance_uuid')
        return self._put(
            events.DeleteInstances(
                host=parsed.host_name, uuids=[dashed(uuid) for uuid in uuids]
            )
        )

    def sync_instance_info(
        self, ctxt: Any, args: Any, incoming: Any
    ) -> Pending:
        """Store that a host has these instances and no others."""
        parsed = self._parse(args, _SyncArgs)
        credentials(ctxt)
        _check_count(parsed.instance_uuids, 'instance_uuids')
        documents.check_text(parsed.host_name, 'host_name')
        return self._put(
            events.SyncInstances(
                host=parsed.host_name,
                uuids=[dashed(uuid) for uuid in parsed.instance_uuids],
            )
        )

    def update_aggregates(
        self, ctxt: Any, args: Any, incoming: Any
    ) -> Pending:
        """Add or update aggregates."""
        parsed = self._parse(args, _AggregatesArgs)
        credentials(ctxt)
        listed = _each(parsed.aggregates, 'aggregates', documents.aggregate)
        return self._put(events.UpdateAggregates(aggregates=listed))

    def delete_aggregate(self, ctxt: Any, args: Any, incoming: Any) -> Pending:
        """Remove an aggregate, given by its id or its document."""
        parsed = self._parse(args, _AggregateArgs)
        credentials(ctxt)
        given = parsed.aggregate
        number = given if isinstance(given, int) else given.get('id')
        whole = isinstance(number, int) and not isinstance(number, bool)
        if not whole or not 0 <= number < 2**31:
            raise errors.InvalidRequest(
                'aggregate: expected an id of 0 to 2147483647, or a document '
                'with one',
                at='aggregate',
            )
        return self._put(events.DeleteAggregate(id=number))

    def _put(self, event: events.Event) -> Pending:
        future: Future[Any] = self._writer.submit(event)
        return Pending(future)


def _each(
    documents_given: list[Any], place: str, parse: Callable[[Any], Any]
) -> list[Any]:
    """Parse each document of a list; an error names the index."""
    _check_count(documents_given, place)
    parsed = []
    for index, document in enumerate(documents_given):
        try:
            parsed.append(parse(document))
        except errors.InvalidRequest as error:
            inner = error.facts.get('at') or ''
            where = f'{place}[{index}]' + (f'.{inner}' if inner else '')
            text = str(error.args[0]).removeprefix(f'{inner}: ')
            raise errors.InvalidRequest(f'{where}: {text}', at=where) from None
    return parsed


def _check_count(given: list[Any], place: str) -> None:
    if len(given) > _MAX_ENTRIES:
        raise errors.PayloadTooLarge(
            f'{place}: at most {_MAX_ENTRIES}, got {len(given)}'
        )
