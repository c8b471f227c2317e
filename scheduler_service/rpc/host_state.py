"""The methods with which hosts, conductors and operators report state.

They run on the bus thread, or on the redelivery thread, and never block.
The writer's own thread stores the reports.
"""

from __future__ import annotations

from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service.bus import wire
from scheduler_service.model import (
    Aggregate,
    HostReport,
    Instance,
    documents,
)
from scheduler_service.model.inventory import Document, Uuid, dashed
from scheduler_service.model.limits import Name
from scheduler_service.policies import Enforcer
from scheduler_service.rpc import authorization
from scheduler_service.rpc.server import Pending, parse_arguments
from scheduler_service.store.workers import host_state_writer

_MAX_ENTRIES = 10_000


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
        documents.check_count(parsed.hosts, 'hosts', _MAX_ENTRIES)
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
        documents.check_count(parsed.hosts, 'hosts', _MAX_ENTRIES)
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
        documents.check_count(listed, 'instance_uuid', _MAX_ENTRIES)
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
        documents.check_count(uuids, 'instance_uuids', _MAX_ENTRIES)
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
        if len(listed) > _MAX_ENTRIES:
            self._writer.count_rejected(what)
        documents.check_count(listed, place, _MAX_ENTRIES)
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
        authorization.caller(self._enforcer, incoming)
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
