"""The client that API and conductor services import.

A client may be used by any number of threads.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import oslo_messaging
from oslo_config import cfg
from oslo_context import context as contexts

from scheduler_service import errors
from scheduler_service.bus.wire import SENT_AT
from scheduler_service.conf import scheduler as options
from scheduler_service.rpc import transport as transports

TOPIC = 'scheduler-service'
EXCHANGE = 'openstack'
VERSION = '1.2'
_FIRST, _REPORTS, _CANDIDATES = '1.0', '1.1', '1.2'
# The bus appends this to the class name of a remote error.
_REMOTE = '_Remote'


class SchedulerClient:
    """Calls schedulers over the message bus.

    Requests, zones and results are plain dicts, documented in the RPC
    reference. Errors are raised as the classes of
    :mod:`scheduler_service.errors`; a class that this release does not have
    is raised as ``RemoteError``.

    A caller that repeats a request after a timeout has to set
    ``instance_uuids``, and for zones ``id``, itself: the same ids get the
    first result again.

    Versions:

    * 1.0 - select_destinations, schedule_zone, schedule_many, explain,
      release, ping
    * 1.1 - select_destinations(move), confirm, drop_moves, and the reports of
      hosts and operators: update_host_state, heartbeat,
      update_instance_info, delete_instance_info, sync_instance_info,
      update_aggregates, delete_aggregate
    * 1.2 - schedule_zone(pools)

    :param conf: a parsed oslo.config object, :data:`cfg.CONF` or any other;
        the client registers the options that it reads: ``transport_url``, its
        driver's options, ``[scheduler] topic`` and ``exchange``, and
        ``[upgrade_levels] scheduler``, which caps the version
    :param transport: used in place of a transport from *conf*
    :param topic: of the daemons; None: ``[scheduler] topic`` of *conf*
    :param exchange: of the daemons; None: ``[scheduler] exchange`` of *conf*;
        the caller's ``control_exchange`` is not used
    :param timeout: of calls, in seconds; None: ``rpc_response_timeout``
    """

    def __init__(
        self,
        conf: Any,
        transport: Any = None,
        topic: str | None = None,
        version_cap: str | None = None,
        timeout: float | None = None,
        exchange: str | None = None,
    ) -> None:
        self.transport = transport or transports.for_client(conf)
        for group, listed in (
            (options.GROUP, options.CLIENT_OPTS),
            # A compute service has the same option itself.
            (options.UPGRADE_GROUP, options.UPGRADE_OPTS),
        ):
            for option in listed:
                with contextlib.suppress(cfg.DuplicateOptError):
                    conf.register_opt(option, group=group)
        topic = topic or conf.scheduler.topic
        exchange = exchange or conf.scheduler.exchange
        self._client = oslo_messaging.get_rpc_client(
            self.transport,
            oslo_messaging.Target(
                exchange=exchange, topic=topic, version=_FIRST
            ),
            serializer=StampingSerializer(),
            version_cap=version_cap
            or conf.upgrade_levels.scheduler
            or VERSION,
            timeout=timeout,
        )

    def select_destinations(
        self,
        context: Any,
        request: Mapping[str, Any],
        claim: bool = True,
        explain: bool = False,
        move: bool = False,
    ) -> dict[str, Any]:
        """Return hosts for the instances of a request, claimed for them.

        :param claim: False: return the selection without a claim
        :param explain: include ``explanation`` in the result
        :param move: the instances already run on hosts, and keep their
            allocations there until the move is confirmed or dropped
        :raises NoValidHost: with the reasons in ``facts``
        :raises InvalidRequest: the request is not valid
        """
        more: dict[str, Any] = {'move': True} if move else {}
        result: dict[str, Any] = self._call(
            context,
            'select_destinations',
            _REPORTS if move else _FIRST,
            request=_with_instances(request, _caller_id(context)),
            claim=claim,
            explain=explain,
            **more,
        )
        return result

    def select_destinations_cast(
        self,
        context: Any,
        request: Mapping[str, Any],
        reply_to: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Cast a request; return the request as sent, with its ids.

        :param reply_to: ``{topic, server, exchange, method}`` to which the
            result or the error is cast; all but topic may be absent
        """
        sent = _with_instances(request, _caller_id(context))
        self._client.cast(
            context, 'select_destinations', request=sent, reply_to=reply_to
        )
        return sent

    def schedule_zone(
        self,
        context: Any,
        zone: Mapping[str, Any],
        keep: bool = True,
        explain: bool = False,
        pools: Sequence[Mapping[str, Any]] | None = None,
    ) -> dict[str, Any]:
        """Return the pool for a zone, and store it as the zone's pool.

        :param keep: False: return the selection, and store nothing
        :param explain: include ``explanation`` in the result
        :param pools: the candidates, in place of the stored pools, each ``{id,
            name, description, attributes}``; *keep* has to be False then, and
            the zone needs no name
        :raises NoValidPoolFound, MultiplePoolsFound: with the pools that each
            filter left
        :raises PoolNotFound, Forbidden: the pool that is requested by its id
            does not exist, or the caller may not choose a pool
        :raises Conflict: the stored pool does not fit the present attributes
            of the zone
        """
        args: dict[str, Any] = {
            'zone': dict(zone),
            'keep': keep,
            'explain': explain,
        }
        version = _FIRST
        if pools is not None:
            args['pools'] = [dict(pool) for pool in pools]
            version = _CANDIDATES
        result: dict[str, Any] = self._call(
            context, 'schedule_zone', version, **args
        )
        return result

    def schedule_zone_cast(
        self,
        context: Any,
        zone: Mapping[str, Any],
        reply_to: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Cast a zone; return the zone as sent, with its request id.

        :param reply_to: as for :meth:`select_destinations_cast`
        """
        sent = {'request_id': _caller_id(context) or _new_id(), **zone}
        self._client.cast(
            context, 'schedule_zone', zone=sent, reply_to=reply_to
        )
        return sent

    def schedule_many(
        self, context: Any, requests: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Send many requests in one message.

        :param requests: each ``{select_destinations: request}`` or
            ``{schedule_zone: zone}``
        :return: for each ``{result: ...}`` or ``{error: {name, message, code,
            facts}}``, in the same order
        """
        sent = [
            {
                'select_destinations': _with_instances(
                    entry['select_destinations']
                )
            }
            if 'select_destinations' in entry
            else dict(entry)
            for entry in requests
        ]
        results: list[dict[str, Any]] = self._call(
            context, 'schedule_many', requests=sent
        )
        return results

    def explain(
        self,
        context: Any,
        request: Mapping[str, Any],
        host: str | None = None,
    ) -> dict[str, Any]:
        """Return what would be selected and why; nothing is claimed.

        :param host: a service host; the result includes that of each filter on
            the host
        :raises HostNotFound: the host does not exist
        """
        result: dict[str, Any] = self._call(
            context, 'explain', request=dict(request), host=host
        )
        return result

    def release(self, context: Any, instances: Sequence[str]) -> list[str]:
        """Release claims; return the uuids of instances that had claims."""
        released: list[str] = self._call(
            context, 'release', instances=list(instances)
        )
        return released

    def confirm(self, context: Any, instances: Sequence[str]) -> list[str]:
        """Confirm claims and moves; return the uuids of changed instances."""
        confirmed: list[str] = self.call(
            context, 'confirm', instances=list(instances)
        )
        return confirmed

    def drop_moves(self, context: Any, instances: Sequence[str]) -> list[str]:
        """Release second claims; return the uuids of instances with any."""
        dropped: list[str] = self.call(
            context, 'drop_moves', instances=list(instances)
        )
        return dropped

    def cast(self, context: Any, method: str, **args: Any) -> None:
        """Cast a report of a host or an operator, without waiting.

        ``update_host_state(hosts)``, ``heartbeat(hosts)``,
        ``update_instance_info(host_name, instance_info)``,
        ``delete_instance_info(host_name, instance_uuid)``,
        ``sync_instance_info(host_name, instance_uuids)``,
        ``update_aggregates(aggregates)``, ``delete_aggregate(aggregate)``.
        """
        client = self._client.prepare(version=_REPORTS)
        client.cast(context, method, **args)

    def call(self, context: Any, method: str, **args: Any) -> Any:
        """Call a method of :meth:`cast`, and wait until the report is stored.

        :raises InvalidRequest: the report is not valid
        """
        return self._call(context, method, _REPORTS, **args)

    def ping(
        self, context: Any, server: str | None = None, recent: bool = False
    ) -> dict[str, Any]:
        """Return the state of a scheduler on the topic.

        :param server: its ``[scheduler] server``; None: any
        :param recent: include the figures of the last minute
        """
        args: dict[str, Any] = {'recent': True} if recent else {}
        result: dict[str, Any] = self._call(
            context, 'ping', server=server, **args
        )
        return result

    def _call(
        self,
        context: Any,
        method: str,
        version: str = _FIRST,
        server: str | None = None,
        **args: Any,
    ) -> Any:
        """Call a method, and raise an error with its original text.

        The bus raises a class whose text repeats the message, with the last
        line of a traceback.
        """
        client = self._client.prepare(version=version, server=server)
        try:
            return client.call(context, method, **args)
        except errors.SchedulerError as error:
            kind = type(error)
            if kind.__name__.endswith(_REMOTE):
                error.__class__ = kind.__bases__[0]
            raise


class ContextSerializer(oslo_messaging.NoOpSerializer):  # type: ignore[misc]
    """Sends a request context, or a dict, as a plain dict.

    The message itself consists of plain values, and is not changed.
    """

    def serialize_context(self, ctxt: Any) -> dict[str, Any]:
        """Return the context as a dict.

        :raises InvalidRequest: the context is of another type
        """
        if isinstance(ctxt, contexts.RequestContext):
            values: dict[str, Any] = ctxt.to_dict()
            return values
        if not isinstance(ctxt, Mapping):
            raise errors.InvalidRequest.at(
                'context',
                'expected a request context or a dict, got '
                f'{type(ctxt).__name__}',
            )
        return dict(ctxt)


class StampingSerializer(ContextSerializer):
    """Adds the time of sending to each message.

    The time shows whether a late request was sent before or after a release.
    """

    def serialize_context(self, ctxt: Any) -> dict[str, Any]:
        """Return the context as a dict with the time; the original stays."""
        values = super().serialize_context(ctxt)
        return {**values, SENT_AT: time.time()} if values else values


def _caller_id(context: Any) -> str | None:
    if isinstance(context, Mapping):
        request_id = context.get('request_id')
    else:
        request_id = getattr(context, 'request_id', None)
    return request_id if isinstance(request_id, str) else None


def _with_instances(
    request: Mapping[str, Any], request_id: str | None = None
) -> dict[str, Any]:
    """Add missing ids, so that a redelivery has the same ids.

    :param request_id: for a request without any; None: a new id
    """
    sent = dict(request)
    if not sent.get('instance_uuids'):
        count = sent.get('num_instances') or 1
        if isinstance(count, int) and 0 < count <= 1000:
            sent['instance_uuids'] = [str(uuid.uuid4()) for _ in range(count)]
    if not sent.get('request_id'):
        sent['request_id'] = request_id or _new_id()
    return sent


def _new_id() -> str:
    return f'req-{uuid.uuid4()}'
