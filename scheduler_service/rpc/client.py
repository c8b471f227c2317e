"""The client that API and conductor services import."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import oslo_messaging
from oslo_config import cfg

from scheduler_service.conf import scheduler as options
from scheduler_service.rpc import transport as transports
from scheduler_service.rpc.context import ContextSerializer

TOPIC = 'scheduler'
VERSION = '1.1'
_FIRST = '1.0'


class SchedulerClient:
    """Asks schedulers over the bus.

    Requests, zones and answers are plain dicts, as the reference has them.
    Errors are raised as the classes of :mod:`scheduler_service.errors`; a
    class that this release does not know arrives as ``RemoteError``.

    A caller that may ask again after a timeout sends ``instance_uuids`` and,
    for zones, ``id`` itself: then asking again finds the first answer.

    Versions:

    * 1.0 - select_destinations, schedule_zone, schedule_many, explain,
      release, ping
    * 1.1 - select_destinations(move), confirm, drop_moves, and what hosts
      tell: update_host_state, heartbeat, update_instance_info,
      delete_instance_info, sync_instance_info, update_aggregates,
      delete_aggregate

    :param conf: oslo.config object that has been parsed, :data:`cfg.CONF` or
        another; what the client reads of it is registered here:
        ``transport_url`` and its driver's options, and ``[upgrade_levels]
        scheduler``, which caps the version
    :param transport: a transport to use instead of one made from *conf*
    :param timeout: of calls, in seconds; None: ``rpc_response_timeout``
    """

    def __init__(
        self,
        conf: Any,
        transport: Any = None,
        topic: str = TOPIC,
        version_cap: str | None = None,
        timeout: float | None = None,
    ) -> None:
        self.transport = transport or transports.for_client(conf)
        _register_version_cap(conf)
        self._client = oslo_messaging.get_rpc_client(
            self.transport,
            oslo_messaging.Target(topic=topic, version=_FIRST),
            serializer=ContextSerializer(),
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

        :param claim: false to see what would be chosen now
        :param explain: have the reasons in the answer
        :param move: the instances are somewhere already, and keep what they
            hold there until the move is confirmed or dropped
        :raises NoValidHost: with the reasons in ``facts``
        :raises InvalidRequest: the request cannot be understood
        """
        asked = {
            'request': _with_instances(request),
            'claim': claim,
            'explain': explain,
        }
        if move:
            answer: dict[str, Any] = self._call_new(
                context, 'select_destinations', **asked, move=True
            )
            return answer
        return self._call(context, 'select_destinations', **asked)

    def select_destinations_cast(
        self,
        context: Any,
        request: Mapping[str, Any],
        reply_to: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Ask without waiting; return the request as it was sent.

        :param reply_to: ``{topic, server, exchange, method}`` that gets the
            answer or the error; all but topic may be absent
        """
        sent = _with_instances(request)
        self._cast(
            context, 'select_destinations', request=sent, reply_to=reply_to
        )
        return sent

    def schedule_zone(
        self,
        context: Any,
        zone: Mapping[str, Any],
        keep: bool = True,
        explain: bool = False,
    ) -> dict[str, Any]:
        """Return the pool for a zone, and keep it.

        :raises NoValidPoolFound, MultiplePoolsFound: with what each filter
            left
        :raises PoolNotFound, Forbidden: the pool asked for by id
        """
        return self._call(
            context, 'schedule_zone', zone=dict(zone), keep=keep,
            explain=explain,
        )  # fmt: skip

    def schedule_zone_cast(
        self,
        context: Any,
        zone: Mapping[str, Any],
        reply_to: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Ask without waiting; return the zone as it was sent."""
        sent = {'request_id': f'req-{_new_uuid()}', **zone}
        self._cast(context, 'schedule_zone', zone=sent, reply_to=reply_to)
        return sent

    def schedule_many(
        self, context: Any, requests: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Ask many things in one message.

        :param requests: each ``{select_destinations: request}`` or
            ``{schedule_zone: zone}``
        :return: for each ``{result: answer}`` or ``{error: {name, message,
            code, facts}}``, in order
        """
        sent = [
            {
                'select_destinations': _with_instances(
                    one['select_destinations']
                )
            }
            if 'select_destinations' in one
            else dict(one)
            for one in requests
        ]
        answers: list[dict[str, Any]] = self._client.call(
            context, 'schedule_many', requests=sent
        )
        return answers

    def explain(
        self,
        context: Any,
        request: Mapping[str, Any],
        host: str | None = None,
    ) -> dict[str, Any]:
        """Return what would happen and why; nothing is claimed.

        :param host: a service host to have every filter's verdict on
        :raises HostNotFound: there is no such host
        """
        return self._call(context, 'explain', request=dict(request), host=host)

    def release(self, context: Any, instances: Sequence[str]) -> list[str]:
        """Give back claims; return the instances that held one."""
        released: list[str] = self._client.call(
            context, 'release', instances=list(instances)
        )
        return released

    def confirm(self, context: Any, instances: Sequence[str]) -> list[str]:
        """Confirm claims, and moves; return those that were not before."""
        confirmed: list[str] = self._call_new(
            context, 'confirm', instances=list(instances)
        )
        return confirmed

    def drop_moves(self, context: Any, instances: Sequence[str]) -> list[str]:
        """Give back second claims; return the instances that held one."""
        dropped: list[str] = self._call_new(
            context, 'drop_moves', instances=list(instances)
        )
        return dropped

    def tell(self, context: Any, method: str, **args: Any) -> None:
        """Cast what hosts and operators tell, as the reference has it.

        ``update_host_state(hosts)``, ``heartbeat(hosts)``,
        ``update_instance_info(host_name, instance_info)``,
        ``delete_instance_info(host_name, instance_uuid)``,
        ``sync_instance_info(host_name, instance_uuids)``,
        ``update_aggregates(aggregates)``, ``delete_aggregate(aggregate)``.
        """
        client = self._client.prepare(version=VERSION)
        client.cast(context, method, **args)

    def ask(self, context: Any, method: str, **args: Any) -> Any:
        """Call what :meth:`tell` casts; wait until it is kept.

        :raises InvalidRequest: it cannot be understood
        """
        return self._call_new(context, method, **args)

    def ping(self, context: Any) -> dict[str, Any]:
        """Return how one scheduler on the topic is."""
        return self._call(context, 'ping')

    def _call(self, context: Any, method: str, **args: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._client.call(context, method, **args)
        return answer

    def _call_new(self, context: Any, method: str, **args: Any) -> Any:
        client = self._client.prepare(version=VERSION)
        return client.call(context, method, **args)

    def _cast(self, context: Any, method: str, **args: Any) -> None:
        self._client.cast(context, method, **args)


def _register_version_cap(conf: Any) -> None:
    """Register ``[upgrade_levels] scheduler``.

    A compute service has an option of this name and meaning itself.
    """
    with contextlib.suppress(cfg.DuplicateOptError):
        conf.register_opts(options.UPGRADE_OPTS, group=options.UPGRADE_GROUP)


def _with_instances(request: Mapping[str, Any]) -> dict[str, Any]:
    """Name request and instances, so that a redelivery is the same one."""
    sent = dict(request)
    if not sent.get('instance_uuids'):
        count = sent.get('num_instances') or 1
        if isinstance(count, int) and 0 < count <= 1000:
            sent['instance_uuids'] = [_new_uuid() for _ in range(count)]
    if not sent.get('request_id'):
        sent['request_id'] = f'req-{_new_uuid()}'
    return sent


def _new_uuid() -> str:
    """Return a random UUID; many are made for a batch.

    As :func:`uuid.uuid4` makes it, in less than half the time.
    """
    made = os.urandom(16).hex()
    variant = '89ab'[int(made[16], 16) & 3]
    return (
        f'{made[:8]}-{made[8:12]}-4{made[13:16]}-{variant}{made[17:20]}'
        f'-{made[20:]}'
    )
