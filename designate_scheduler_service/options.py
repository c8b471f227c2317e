"""Options of the [scheduler_service] group in Designate's configuration."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg

GROUP = 'scheduler_service'

OPTS = [
    cfg.StrOpt(
        'transport_url',
        default=None,
        secret=True,
        sample_default='rabbit://designate:secret@rabbit:5672/scheduler',
        help="""
The message bus of the daemons of scheduler-service.

By default ``[DEFAULT] transport_url``, the bus of Designate itself.
""",
    ),
    cfg.StrOpt(
        'exchange',
        default='openstack',
        help="""
The exchange of the daemons, their ``[scheduler] exchange``.

``[DEFAULT] control_exchange`` does not count here: Designate has a value of
its own for it.
""",
    ),
    cfg.StrOpt(
        'topic',
        default='scheduler-service',
        help='The topic of the daemons, their ``[scheduler] topic``.',
    ),
    cfg.FloatOpt(
        'timeout',
        default=10.0,
        min=0.1,
        help="""
How long to wait for the answer of a daemon, in seconds.

Then the request fails with status 504. Keep it below the
``rpc_response_timeout`` of the callers of designate-central.
""",
    ),
]


def register_opts(conf: Any) -> None:
    """Register the options on *conf*; they may be registered already."""
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str, list[Any]]]:
    """Return the options by group, for oslo-config-generator."""
    return [(GROUP, list(OPTS))]
