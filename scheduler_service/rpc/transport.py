"""Transports by the options, with what this version of the bus needs."""

from __future__ import annotations

from typing import Any

import oslo_messaging
from oslo_messaging import _metrics, _tracing
from oslo_messaging.transport import TransportURL

from scheduler_service.rpc import rabbit

EXCEPTIONS = ['scheduler_service.errors']
_ON_GLOBAL_ONLY = {
    'oslo_messaging_tracing': _tracing.client.oslo_messaging_tracing,
    'oslo_messaging_metrics': _metrics.client.oslo_messaging_metrics,
}


def prepare(conf: Any) -> None:
    """Register what the bus registers on its own global object alone."""
    for group, opts in _ON_GLOBAL_ONLY.items():
        conf.register_opts(opts, group=group)


def for_client(conf: Any, url: str | None = None) -> Any:
    """Return a transport for calls and casts."""
    prepare(conf)
    return oslo_messaging.get_rpc_transport(
        conf, url=url, allowed_remote_exmods=EXCEPTIONS
    )


def for_server(conf: Any, url: str | None = None) -> Any:
    """Return a transport that acknowledges requests after their work."""
    prepare(conf)
    parsed = TransportURL.parse(conf, url)
    if parsed.transport == 'rabbit':
        parsed.transport = rabbit.NAME
    return oslo_messaging.get_rpc_transport(
        conf, url=parsed, allowed_remote_exmods=EXCEPTIONS
    )


def for_notifications(conf: Any, url: str | None = None) -> Any:
    """Return a transport for notifications."""
    prepare(conf)
    return oslo_messaging.get_notification_transport(conf, url=url)
