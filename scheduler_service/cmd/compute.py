"""The compute service's interface as the options say."""

from __future__ import annotations

from typing import Any

from scheduler_service import errors
from scheduler_service.compute.changes import Changes
from scheduler_service.engine.external import HostOrderer
from scheduler_service.engine.factory import host_orderer
from scheduler_service.engine.scheduler import Scheduler
from scheduler_service.rpc import transport
from scheduler_service.rpc.compute import ComputeEndpoint


def check(conf: Any) -> None:
    """Check that both interfaces have queues of their own.

    A queue is named by its topic alone: on one virtual host, each interface
    would get a share of the other one's requests.

    :raises ConfigurationError: they would share one
    """
    group = conf.compute
    if not group.enabled or group.transport_url:
        return
    if group.topic == conf.scheduler.topic:
        raise errors.ConfigurationError(
            f'[scheduler] topic and [compute] topic are both {group.topic}: '
            'set [scheduler] topic to another one, or [compute] transport_url'
        )


def transport_of(conf: Any, own: Any) -> Any:
    """Return the transport of the compute service.

    :param own: of our own interface, which is used where none is configured
    """
    url = conf.compute.transport_url
    if not conf.compute.enabled or not url:
        return own
    return transport.for_server(conf, url)


def target(conf: Any, name: str) -> Any:
    """Return what the daemon of a name consumes from."""
    group = conf.compute
    return transport.target(
        group.control_exchange, group.topic, name, fanout=True
    )


def endpoint(
    conf: Any, scheduler: Scheduler, changes: Changes
) -> ComputeEndpoint:
    """Return the methods of the interface."""
    return ComputeEndpoint(
        scheduler,
        changes,
        conf.compute.reason == 'full',
        conf.scheduler.request_max_bytes,
        conf.compute.use_placement,
    )


def reconfigure(served: ComputeEndpoint, conf: Any) -> None:
    """Have the methods of the interface follow changed options."""
    served.full_reasons = conf.compute.reason == 'full'
    served.limit(conf.scheduler.request_max_bytes)


def orderer(conf: Any, scheduler: Scheduler) -> HostOrderer | None:
    """Return what orders hosts for the compute service, if it is to.

    :raises ConfigurationError: a filter or weigher does not load
    """
    if not conf.compute.external_scheduler:
        return None
    return host_orderer(conf, scheduler)


def routes(
    conf: Any, orderer: HostOrderer | None
) -> tuple[list[Any], list[str]]:
    """Return the routes of the HTTP server, and those that need no token."""
    group = conf.compute
    if orderer is None or group.external_scheduler_bind_port is not None:
        return [], []
    from scheduler_service.http import external

    found = external.routes(orderer, conf.http.max_body_bytes)
    needs_none = not group.external_scheduler_authentication
    return found, [*external.PATHS] if needs_none else []


def address(conf: Any) -> tuple[str, int]:
    """Return where the server for the order of hosts alone listens."""
    group = conf.compute
    host = str(group.external_scheduler_bind_host)
    return host, group.external_scheduler_bind_port


def router(
    conf: Any, scheduler: Scheduler, orderer: HostOrderer | None
) -> Any:
    """Return what answers calls for the order of hosts on their own port.

    :return: None where they have none
    :raises ConfigurationError: other machines could connect without a token
    """
    group = conf.compute
    if orderer is None or group.external_scheduler_bind_port is None:
        return None
    from scheduler_service.http import access, external

    if group.external_scheduler_authentication:
        option = '[compute] external_scheduler_bind_host'
        host = str(group.external_scheduler_bind_host)
        guard = access.guard_of(conf.http, bind_host=(option, host))
    else:
        guard = access.Guard(None, False, [])
    return external.router(
        external.routes(orderer, conf.http.max_body_bytes),
        guard,
        scheduler.health,
        lambda: scheduler.snapshot() is not None,
    )
