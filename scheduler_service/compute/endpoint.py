"""The scheduler interface of the compute service, versions 4.4 and 4.5.

All methods run on the consumer's thread, or on the redelivery thread, and
never block. Callers come with the roles of their tenants, so not our policy
but the permissions of the broker say who may call.

The compute service says by a scheduler hint that a request is a rebuild, and
a rebuild is neither filtered by most filters nor claimed. Some releases of
the compute service let any user give that hint, so it counts only where the
instances are known to be on the host that is asked for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from scheduler_service import errors
from scheduler_service.bus import wire
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.columns.table import Snapshot
from scheduler_service.compute import translation
from scheduler_service.compute.translation import ComputeRequest, translate
from scheduler_service.engine.messages import (
    DeliveredMessage,
    ReplyFuture,
    RequestReturned,
)
from scheduler_service.listings import READ_S
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
from scheduler_service.store.connection import Store
from scheduler_service.store.reading import change_feed
from scheduler_service.store.workers import host_state_writer

VERSION = '4.5'
# The first version in which a request names its instances and gets a reply of
# the present form.
_FIRST = (4, 4)
# Versioned objects are larger than equal requests of ours: they repeat the
# names of their fields.
_SIZE_FACTOR = 4
LOG = logging.getLogger(__name__)
# After how many seconds a caller is named in the log once more.
_LOGGED_EVERY_S = 3600.0


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
        return translation.failure(error, self.full_reasons)

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
                return translation.plain(answer, translated.networks)
            return translation.selections(
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
                return translation.no_such_host(*unknown)
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
        event = translation.aggregates(parsed.aggregates)
        return self._change(incoming, event)

    def delete_aggregate(self, incoming: wire.Request) -> Pending:
        """Remove an aggregate."""
        parsed = self._parse(incoming, _AggregateArgs)
        event = translation.no_aggregate(parsed.aggregate)
        return self._change(incoming, event)

    def update_instance_info(self, incoming: wire.Request) -> Pending:
        """Store instances of a host."""
        parsed = self._parse(incoming, _InstanceInfoArgs)
        event = translation.instances(parsed.host_name, parsed.instance_info)
        return self._change(incoming, event)

    def delete_instance_info(self, incoming: wire.Request) -> Pending:
        """Remove an instance that left a host."""
        parsed = self._parse(incoming, _DeleteInfoArgs)
        event = translation.no_instance(parsed.host_name, parsed.instance_uuid)
        return self._change(incoming, event)

    def sync_instance_info(self, incoming: wire.Request) -> Pending:
        """Store that a host has these instances and no others."""
        parsed = self._parse(incoming, _SyncArgs)
        event = translation.all_instances(
            parsed.host_name, parsed.instance_uuids
        )
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


class RebuildCheck:
    """Checks requests that say that they are rebuilds.

    Any thread may call it.

    :param store: has the instances that the mirror has read
    :param snapshot: gives the newest snapshot, None before the first
    :param catch_up: has the mirror read what is new, and waits for it
    """

    def __init__(
        self,
        store: Store,
        snapshot: Callable[[], Snapshot | None],
        catch_up: Callable[[], object],
    ) -> None:
        self._store = store
        self._snapshot = snapshot
        self._catch_up = catch_up
        # (user, project) -> monotonic time of the line in the log
        self._logged_at: dict[tuple[str, str], float] = {}

    def is_verified(self, request: Request) -> bool:
        """Whether nothing has to be looked up; does not wait.

        It is no rebuild, or the snapshot has its instances on their host.
        """
        if not request.is_rebuild:
            return True
        snapshot = self._snapshot()
        if snapshot is None:
            return False
        placed = snapshot.hosts.instances.among(request.instance_uuids)
        return _are_there([*placed.values()], request)

    def verify(self, request: Request, context: Mapping[str, Any]) -> None:
        """Have a request judged as any other, unless it is a rebuild.

        :param context: of the caller
        :raises StoreUnavailable: the database does not answer
        """
        if self.is_verified(request):
            return
        placed: Sequence[PlacedInstance] = ()
        # Users cannot name a host, so that their hints delay nobody.
        if any(request.named_places):
            self._catch_up()
            uuids = request.instance_uuids
            with self._store.reading(READ_S) as conn:
                placed = change_feed.placed_instances(conn, uuids)
        if not _are_there(placed, request):
            request.deny_rebuild()
            self._log(request, context)

    def _log(self, request: Request, context: Mapping[str, Any]) -> None:
        now = time.monotonic()
        caller = str(context.get('user_id')), str(context.get('project_id'))
        self._logged_at = {
            each: at
            for each, at in self._logged_at.items()
            if now - at < _LOGGED_EVERY_S
        }
        if caller in self._logged_at:
            return
        self._logged_at[caller] = now
        LOG.warning(
            'Request %s of user %s, project %s is no rebuild: its instances '
            'are not known to be on the host that it asks for',
            request.request_id,
            *caller,
        )


def _are_there(placed: Sequence[PlacedInstance], request: Request) -> bool:
    """Whether each instance of a request is on the one host that it names."""
    hosts, nodes = ({name.lower() for name in n} for n in request.named_places)
    return (
        bool(hosts or nodes)
        and len(placed) == request.num_instances
        and all(
            hosts <= {one.host.lower()} and nodes <= {one.node.lower()}
            for one in placed
        )
    )
