"""Options of the [http] group: health, metrics, /v1, and us as extender."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg

GROUP = 'http'

OPTS = [
    cfg.PortOpt(
        'bind_port',
        default=None,
        sample_default=9393,
        help="""
The port of the HTTP face: health, metrics, ``/v1`` and ``/extender``.

Unset, nothing is served.
""",
    ),
    cfg.HostAddressOpt(
        'bind_host',
        default='127.0.0.1',
        help="""
The address to listen on.

Anything but loopback needs ``token_file`` or ``ca_file``.
""",
    ),
    cfg.StrOpt(
        'token_file',
        default=None,
        help="""
A file with the bearer token that callers send.

``/healthcheck`` and ``/readyz`` are open to everybody.
""",
    ),
    cfg.StrOpt('cert_file', default=None, help='Our certificate, for https.'),
    cfg.StrOpt('key_file', default=None, help="Our certificate's key."),
    cfg.StrOpt(
        'ca_file',
        default=None,
        help='The CA of client certificates, which do instead of a token.',
    ),
    cfg.IntOpt(
        'threads',
        default=8,
        min=1,
        max=128,
        help='How many requests are worked on at once.',
    ),
    cfg.FloatOpt(
        'request_timeout',
        default=10.0,
        min=0.1,
        help="""
How long a request may take to arrive, in seconds.

A client that is slower is cut off, so that it holds no thread for long.
""",
    ),
    cfg.FloatOpt(
        'idle_timeout',
        default=120.0,
        min=1.0,
        help="""
How long an idle connection is kept, in seconds.

A kube-scheduler keeps its own for 90 s: keep them longer.
""",
    ),
    cfg.IntOpt(
        'max_body_bytes',
        default=64 * 1024 * 1024,
        min=1024,
        help='Larger bodies are refused with 413.',
    ),
]


def register_opts(conf: Any) -> None:
    """Register this module's options on *conf*."""
    conf.register_opts(OPTS, group=GROUP)
