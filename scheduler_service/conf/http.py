"""Options of the [http] group: the server for health, metrics and /v1."""

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
The port of the HTTP server: health, metrics, ``/v1`` and ``/extender``.

Unset, there is no HTTP server.
""",
    ),
    cfg.HostAddressOpt(
        'bind_host',
        default='127.0.0.1',
        help="""
The address to listen on.

Any but a loopback address needs ``token_file`` or ``ca_file``.
""",
    ),
    cfg.StrOpt(
        'token_file',
        mutable=True,
        default=None,
        help="""
The path of a file with the bearer token that clients have to send.

``/healthcheck`` and ``/readyz`` need none.
""",
    ),
    cfg.StrOpt(
        'cert_file',
        mutable=True,
        default=None,
        help='The path of the server certificate; turns HTTPS on.',
    ),
    cfg.StrOpt(
        'key_file',
        mutable=True,
        default=None,
        help="The path of the server certificate's key.",
    ),
    cfg.StrOpt(
        'ca_file',
        mutable=True,
        default=None,
        help='The CA of client certificates, which replace the token.',
    ),
    cfg.ListOpt(
        'roles',
        mutable=True,
        default=['admin'],
        help="""
The roles of clients of ``/v1`` in the rules of the policy.

The token or the certificate admits a client; these roles say what it may do
then. The name of a certificate (CN) is its ``user_id``.
""",
    ),
    cfg.IntOpt(
        'threads',
        mutable=True,
        default=8,
        min=1,
        max=128,
        help="""
How many requests of ``/v1`` are processed at the same time, and how many
binds.

Filtering and scoring for a kube-scheduler, health and metrics do not wait for
these.
""",
    ),
    cfg.FloatOpt(
        'request_timeout',
        mutable=True,
        default=10.0,
        min=0.1,
        help="""
How long a client may take to send a request, in seconds.

The connection of a slower client is closed. A TLS handshake has the same
time.
""",
    ),
    cfg.FloatOpt(
        'idle_timeout',
        mutable=True,
        default=120.0,
        min=1.0,
        help="""
How long an idle connection stays open, in seconds.

A kube-scheduler closes its own after 90 s; this has to be longer.
""",
    ),
    cfg.IntOpt(
        'max_connections',
        mutable=True,
        default=2000,
        min=1,
        help="""
How many connections may be open.

For one more, the client that has most loses the one on which nothing was
asked for the longest time. Each needs an open file: the limit of the process
(``LimitNOFILE`` of systemd) has to be larger by 512, and is raised if that is
allowed.
""",
    ),
    cfg.IntOpt(
        'max_connections_per_address',
        mutable=True,
        default=500,
        min=1,
        help="""
How many connections one address may have open.

For one more, it loses the one on which it asked nothing for the longest time.
Addresses of one IPv6 network of 64 bits count as one.
""",
    ),
    cfg.IntOpt(
        'max_body_bytes',
        mutable=True,
        default=64 * 1024 * 1024,
        min=1024,
        help="""
The most bytes of a request body; a larger one gets status 413.

This holds before and after decompression. Bodies that are arriving may have
four times as many in all; one more gets status 503.
""",
    ),
]


def register_opts(conf: Any) -> None:
    """Register this module's options on *conf*."""
    conf.register_opts(OPTS, group=GROUP)
