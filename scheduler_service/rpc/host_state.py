"""What compute services, conductors and operators tell over the bus."""

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

_MOST = 10_000


class _Reports(Document):
    hosts: list[dict[str, Any]]


class _Beats(Document):
    hosts: list[Name]


class _Info(Document):
    host_name: Name
    instance_info: list[dict[str, Any]] | dict[str, Any]


class _Gone(Document):
    host_name: Name
    instance_uuid: Uuid | list[Uuid]


class _Sync(Document):
    host_name: Name
    instance_uuids: list[Uuid]


class _Aggregates(Document):
    aggregates: list[dict[str, Any]]


class _Aggregate(Document):
    aggregate: int | dict[str, Any]


class HostStateEndpoint:
    """State, use and instances of hosts, and aggregates.

    What is told may be told to one daemon or to all of them: it is kept
    once. Reports and heartbeats are answered when they are taken, for the
    next one makes up for one that is lost; all else when it is kept.
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
        self, reporter: HostStateWriter, reader: ArgumentParser
    ) -> None:
        self._reporter = reporter
        self._parse = reader.parse

    def update_host_state(
        self, ctxt: Any, args: Any, incoming: Any
    ) -> dict[str, int]:
        """Take what hosts report; the answer is how many were taken."""
        asked = self._parse(args, _Reports)
        credentials(ctxt)
        reports = _each(asked.hosts, 'hosts', documents.host_report)
        return {'taken': self._reporter.report(reports)}

    def heartbeat(self, ctxt: Any, args: Any, incoming: Any) -> dict[str, int]:
        """Note that service hosts live; the answer is how many."""
        asked = self._parse(args, _Beats)
        credentials(ctxt)
        _check_count(asked.hosts, 'hosts')
        documents.check_text(asked.hosts, 'hosts')
        return {'taken': self._reporter.heartbeat(asked.hosts)}

    def update_instance_info(
        self, ctxt: Any, args: Any, incoming: Any
    ) -> Pending:
        """Note instances that a host has; the answer is how many changed."""
        asked = self._parse(args, _Info)
        credentials(ctxt)
        told = asked.instance_info
        listed = told if isinstance(told, list) else [told]
        placed = [{'host': asked.host_name, **one} for one in listed]
        instances = _each(placed, 'instance_info', documents.instance)
        for one in instances:
            if one.host != asked.host_name:
                raise errors.InvalidRequest(
                    f'instance_info: {one.uuid} is told of another host',
                    at='instance_info',
                )
        return self._put(events.UpdateInstances(instances=instances))

    def delete_instance_info(
        self, ctxt: Any, args: Any, incoming: Any
    ) -> Pending:
        """Note instances that a host has not any more."""
        asked = self._parse(args, _Gone)
        credentials(ctxt)
        told = asked.instance_uuid
        uuids = told if isinstance(told, list) else [told]
        _check_count(uuids, 'instance_uuid')
        return self._put(
            events.DeleteInstances(
                host=asked.host_name, uuids=[dashed(one) for one in uuids]
            )
        )

    def sync_instance_info(
        self, ctxt: Any, args: Any, incoming: Any
    ) -> Pending:
        """Note that a host has these instances and no others."""
        asked = self._parse(args, _Sync)
        credentials(ctxt)
        _check_count(asked.instance_uuids, 'instance_uuids')
        documents.check_text(asked.host_name, 'host_name')
        return self._put(
            events.SyncInstances(
                host=asked.host_name,
                uuids=[dashed(one) for one in asked.instance_uuids],
            )
        )

    def update_aggregates(
        self, ctxt: Any, args: Any, incoming: Any
    ) -> Pending:
        """Add aggregates or bring them up to date."""
        asked = self._parse(args, _Aggregates)
        credentials(ctxt)
        found = _each(asked.aggregates, 'aggregates', documents.aggregate)
        return self._put(events.UpdateAggregates(aggregates=found))

    def delete_aggregate(self, ctxt: Any, args: Any, incoming: Any) -> Pending:
        """Remove an aggregate, named by its id or its document."""
        asked = self._parse(args, _Aggregate)
        credentials(ctxt)
        told = asked.aggregate
        named = told if isinstance(told, int) else told.get('id')
        whole = isinstance(named, int) and not isinstance(named, bool)
        if not whole or not 0 <= named < 2**31:
            raise errors.InvalidRequest(
                'aggregate: expected an id', at='aggregate'
            )
        return self._put(events.DeleteAggregate(id=named))

    def _put(self, event: events.Event) -> Pending:
        future: Future[Any] = self._reporter.submit(event)
        return Pending(future)


def _each(
    documents_given: list[Any], place: str, parse: Callable[[Any], Any]
) -> list[Any]:
    """Parse each document of a list; an error names which one is wrong."""
    _check_count(documents_given, place)
    found = []
    for index, one in enumerate(documents_given):
        try:
            found.append(parse(one))
        except errors.InvalidRequest as error:
            inner = error.facts.get('at') or ''
            where = f'{place}[{index}]' + (f'.{inner}' if inner else '')
            text = str(error.args[0]).removeprefix(f'{inner}: ')
            raise errors.InvalidRequest(f'{where}: {text}', at=where) from None
    return found


def _check_count(given: list[Any], place: str) -> None:
    if len(given) > _MOST:
        raise errors.PayloadTooLarge(
            f'{place}: at most {_MOST}, got {len(given)}'
        )
