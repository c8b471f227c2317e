"""The scheduler interface of the compute service, versions 4.4 and 4.5.

All methods run on the consumer's thread, or on the redelivery thread, and
never block. Callers come with the roles of their tenants, so not our policy
but the permissions of the broker say who may call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from scheduler_service import errors
from scheduler_service.bus import wire
from scheduler_service.compute import reply, state
from scheduler_service.compute.rebuilds import RebuildCheck
from scheduler_service.compute.request import ComputeRequest, translate
from scheduler_service.engine.messages import (
    DeliveredMessage,
    ReplyFuture,
    RequestReturned,
)
from scheduler_service.model import HostsAnswer, Request
from scheduler_service.model.inventory import Document, Uuid
from scheduler_service.model.limits import Name
from scheduler_service.pipeline.mandatory_filters import has_node
from scheduler_service.rpc.delivery import ReplyForm, undo
from scheduler_service.rpc.server import (
    REQUEST_MAX_BYTES,
    Dispatcher,
    Pending,
    delivered,
    parse_arguments,
)
from scheduler_service.scheduler import Scheduler
from scheduler_service.store.workers import host_state_writer

VERSION = '4.5'
# The first version in which a request names its instances and gets a reply of
# the present form.
_FIRST = (4, 4)
# Versioned objects are larger than equal requests of ours: they repeat the
# names of their fields.
_SIZE_FACTOR = 4


class _SelectArgs(Document):
    spec_obj: dict[str, Any]
    instance_uuids: list[Any]
    return_objects: bool = False
    return_alternates: bool = False


class _AggregatesArgs(Document):
    aggregates: list[Any] | dict[str, Any]


class _AggregateArgs(Document):
    aggregate: dict[str, Any]


class _InstanceInfoArgs(Document):
    host_name: Name
    instance_info: list[Any] | dict[str, Any]


class _DeleteInfoArgs(Document):
    host_name: Name
    instance_uuid: Uuid


class _SyncArgs(Document):
    host_name: Name
    instance_uuids: list[Uuid]


class ComputeEndpoint:
    """Selects hosts, and takes in casts about changes.

    :param rebuilds: says whether a request is the rebuild that it says it is
    :param on_change: called after a cast about a change; must not block
    :ivar full_reasons: callers get every reason why there is no host
    """

    def __init__(
        self,
        scheduler: Scheduler,
        rebuilds: RebuildCheck,
        on_change: Callable[[], None],
        full_reasons: bool,
    ) -> None:
        self._scheduler = scheduler
        self._rebuilds = rebuilds
        # For what has to be looked up first.
        self._thread = ThreadPoolExecutor(1, 'rebuilds')
        self._on_change = on_change
        self.full_reasons = full_reasons

    def _failure(self, error: errors.SchedulerError) -> Exception:
        """Return an error in the form that callers expect."""
        return reply.failure(error, self.full_reasons)

    def select_destinations(self, incoming: wire.Request) -> Pending:
        """Select hosts for the instances of a RequestSpec, and claim them.

        The result is a list for each instance: its Selection, and those of
        its alternates.

        :raises InvalidRequest: an argument is invalid; or the message is a
            cast, so that no caller would learn of the claim
        """
        if not incoming.is_call:
            raise errors.InvalidRequest('expected a call, got a cast')
        parsed, translated = self.translated(incoming.message, incoming.ctxt)
        message = delivered(incoming)
        request = translated.request
        amounts = request.resources

        def serialize(answer: HostsAnswer) -> Any:
            if not parsed.return_objects:
                return reply.plain(answer, translated.networks)
            return reply.selections(
                answer, amounts, parsed.return_alternates, translated.networks
            )

        def undo_claims(result: Any) -> None:
            if not request.is_rebuild:
                undo(self._scheduler, message, result)

        future = ReplyFuture()
        submit = partial(
            self._submit, translated, incoming.deadline, message, future
        )
        if self._rebuilds.is_verified(request):
            submit()
        else:
            self._thread.submit(
                self._submit_verified, request, submit, future, message
            )
        return Pending(
            future,
            ReplyForm(
                serialize,
                failure=partial(self._refusal, request),
                undo=undo_claims,
            ),
        )

    def translated(
        self, message: Mapping[str, Any], context: Mapping[str, Any]
    ) -> tuple[Any, ComputeRequest]:
        """Return the arguments of a call for hosts, and its request.

        :raises InvalidRequest: an argument is invalid
        """
        _check_version(message.get('version'))
        parsed = _arguments(message.get('args', {}), _SelectArgs)
        return parsed, translate(
            parsed.spec_obj, parsed.instance_uuids, context, self._group_of
        )

    def _submit_verified(
        self,
        request: Request,
        submit: Callable[[], None],
        future: ReplyFuture,
        message: DeliveredMessage,
    ) -> None:
        """Submit a request once it is known whether it is a rebuild."""
        try:
            self._rebuilds.verify(request, message.context)
            submit()
        except errors.StoreUnavailable as error:
            returned = future.returnable
            future.set_exception(RequestReturned() if returned else error)
        except BaseException as fault:
            future.set_exception(errors.as_scheduler_error(fault))

    def _submit(
        self,
        translated: ComputeRequest,
        until: float | None,
        message: DeliveredMessage,
        future: ReplyFuture,
    ) -> None:
        """Submit a request, after jobs that store its group and old claims.

        Jobs of the same instances run in their order.
        """
        request = translated.request
        self.store_group(translated, message)
        present = not request.is_rebuild and self._has_placed(request)
        if present:
            # The instances are no longer built there, or do not move there.
            self._scheduler.supersede(request.instance_uuids, message)
        self._scheduler.select_destinations(
            request,
            claim=not request.is_rebuild,
            deadline=until,
            move=None if present else False,
            message=message,
            future=future,
        )

    def store_group(
        self, translated: ComputeRequest, message: DeliveredMessage
    ) -> None:
        """Have the server group of a request stored as it is there."""
        if translated.group is not None and not self._is_stored(translated):
            self._scheduler.store_group(
                translated.group, translated.request.instance_uuids, message
            )

    def _has_placed(self, request: Request) -> bool:
        snapshot = self._scheduler.snapshot()
        return snapshot is not None and any(
            snapshot.hosts.instances.get(uuid) is not None
            for uuid in request.instance_uuids
        )

    def _group_of(self, members: Sequence[str]) -> str | None:
        """Return a stored server group of some instances."""
        snapshot = self._scheduler.snapshot()
        groups = snapshot.hosts.groups_of(members) if snapshot else {}
        return next((uuids[0] for uuids in groups.values()), None)

    def _is_stored(self, translated: ComputeRequest) -> bool:
        """Whether the server group is stored as the request has it.

        Its new instances become members with their claims.
        """
        snapshot, group = self._scheduler.snapshot(), translated.group
        assert group is not None
        stored = snapshot and snapshot.hosts.groups.get(group.uuid)
        if not stored:
            return False
        earlier = {*group.members} - {*translated.request.instance_uuids}
        return (
            stored.policy == group.policy
            and stored.rules == group.rules
            and earlier <= {*stored.members}
        )

    def _refusal(
        self, request: Request, error: errors.SchedulerError
    ) -> Exception:
        if isinstance(error, errors.NoValidHost):
            unknown = self._unknown_target(request)
            if unknown is not None:
                return reply.no_such_host(*unknown)
        return self._failure(error)

    def _unknown_target(
        self, request: Request
    ) -> tuple[str | None, str | None] | None:
        """Return the requested (host, node) if it does not exist."""
        host, node = (next(iter(n), None) for n in request.named_places)
        snapshot = self._scheduler.snapshot()
        if snapshot is None:
            return None
        return None if has_node(snapshot.hosts, host, node) else (host, node)

    def update_aggregates(self, incoming: wire.Request) -> Pending:
        """Store aggregates as they are now."""
        parsed = self._parse(incoming, _AggregatesArgs)
        event = state.aggregates(parsed.aggregates)
        return self._change(incoming, event)

    def delete_aggregate(self, incoming: wire.Request) -> Pending:
        """Remove an aggregate."""
        parsed = self._parse(incoming, _AggregateArgs)
        event = state.no_aggregate(parsed.aggregate)
        return self._change(incoming, event)

    def update_instance_info(self, incoming: wire.Request) -> Pending:
        """Store instances of a host."""
        parsed = self._parse(incoming, _InstanceInfoArgs)
        event = state.instances(parsed.host_name, parsed.instance_info)
        return self._change(incoming, event)

    def delete_instance_info(self, incoming: wire.Request) -> Pending:
        """Remove an instance that left a host."""
        parsed = self._parse(incoming, _DeleteInfoArgs)
        event = state.no_instance(parsed.host_name, parsed.instance_uuid)
        return self._change(incoming, event)

    def sync_instance_info(self, incoming: wire.Request) -> Pending:
        """Store that a host has these instances and no others."""
        parsed = self._parse(incoming, _SyncArgs)
        event = state.all_instances(parsed.host_name, parsed.instance_uuids)
        return self._change(incoming, event)

    def _parse(self, incoming: wire.Request, kind: type[Any]) -> Any:
        return _arguments(incoming.args, kind)

    def _change(
        self, incoming: wire.Request, event: host_state_writer.Event
    ) -> Pending:
        self._scheduler.health.count('compute_changes', incoming.method)
        self._on_change()
        return Pending(self._scheduler.host_state_writer.submit(event))


def dispatcher(endpoint: ComputeEndpoint) -> Dispatcher:
    """Return the dispatcher of messages to the methods."""
    return Dispatcher([endpoint], VERSION, endpoint._failure)


def _arguments(args: Any, kind: type[Any]) -> Any:
    """Return the arguments of a message, checked."""
    return parse_arguments(args, kind, _SIZE_FACTOR * REQUEST_MAX_BYTES)


def _check_version(version: Any) -> None:
    """Check the version of a call of ``select_destinations``."""
    major, _, minor = str(version).partition('.')
    if (int(major), int(minor)) < _FIRST:
        served = f'{_FIRST[0]}.{_FIRST[1]}'
        raise errors.InvalidRequest(
            f'version {version} of select_destinations is not served, only '
            f'{served} to {VERSION}: upgrade the conductors first',
            version=version,
            served=VERSION,
        )
