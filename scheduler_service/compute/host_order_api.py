"""The call of a service that asks an external scheduler for an order of hosts.

Compute, share and block storage services make it, each on a path of its own.

It is answered with exactly ``{"hosts": [...]}``. Status 400 says that the
request is not for this scheduler: the caller then keeps its own order.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service import extender_wire as wire
from scheduler_service.compute import request as compute
from scheduler_service.compute import storage
from scheduler_service.compute.host_order import HostOrderer, SentHost
from scheduler_service.engine.health import Health
from scheduler_service.http.access import Guard
from scheduler_service.http.message import Reply, Request
from scheduler_service.http.routes import Route, Router
from scheduler_service.model import Request as Wanted

_MAX_HOSTS = 100_000


class _Host(msgspec.Struct):
    host: str
    hypervisor_hostname: str | None = None


class _Args(msgspec.Struct):
    spec: dict[str, Any]
    hosts: list[_Host]
    weights: dict[str, float] = {}
    context: dict[str, Any] = {}


_read = msgspec.json.Decoder(_Args).decode


def routes(orderer: HostOrderer, max_bytes: int) -> list[Route]:
    """Return the routes of the call."""
    return [
        Route(
            path,
            functools.partial(_serve, orderer, translate),
            'evaluate',
            max_bytes,
            ('POST',),
            needs_hosts=True,
        )
        for path, translate in _TRANSLATORS.items()
    ]


def router(
    found: Sequence[Route],
    guard: Guard,
    health: Health,
    are_hosts_loaded: Callable[[], bool],
) -> Router:
    """Return what answers these calls on a listener of their own.

    :param found: their routes
    """
    other = Route('other', _not_found, 'evaluate', 0)
    return Router(
        found, lambda path: other, guard, health, are_hosts_loaded,
        {'evaluate': 1},
    )  # fmt: skip


def _not_found(request: Request, text: bytes) -> Reply:
    raise errors.NotFound(f'{request.path} is not served here')


def _serve(
    orderer: HostOrderer,
    translate: Callable[[dict[str, Any], dict[str, Any]], Wanted],
    request: Request,
    text: bytes,
) -> Reply:
    """Order the hosts of a call.

    :param translate: makes a request of ours from a spec and a context
    :raises InvalidRequest: it cannot be read, or asks for something that is
        not supported
    """
    try:
        args = _read(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise errors.InvalidRequest(f'cannot be read: {fault}') from None
    if len(args.hosts) > _MAX_HOSTS:
        raise errors.InvalidRequest(f'hosts: at most {_MAX_HOSTS}')
    wanted = translate(args.spec, args.context)
    hosts = [SentHost(one.host, one.hypervisor_hostname) for one in args.hosts]
    try:
        names = orderer.order(wanted, hosts, args.weights)
    except errors.NoValidHost:
        names = []
    return Reply(200, wire.encode({'hosts': names}))


def _instance_request(spec: dict[str, Any], context: dict[str, Any]) -> Wanted:
    """Return a request of the compute service.

    It is for one instance, however many it was for in the first place.
    """
    return compute.translate(spec, [_instance(spec)], context).request


def _instance(spec: dict[str, Any]) -> str:
    """Return the instance of a request; a new uuid where it names none."""
    data = spec.get('nova_object.data')
    found = data.get('instance_uuid') if isinstance(data, dict) else None
    return found if isinstance(found, str) else str(uuid.uuid4())


_TRANSLATORS = {
    '/scheduler/nova/external': _instance_request,
    '/scheduler/manila/external': storage.share,
    '/scheduler/cinder/external': storage.volume,
}
PATHS = tuple(_TRANSLATORS)
