"""Options of the [http] group: the server for health, metrics, /v1, pages."""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'http'

OPTS = [
    cfg.PortOpt(
        'bind_port',
        sample_default=9393,
        help="""
The port of the HTTP server: health, metrics, pages, ``/v1`` and
``/extender``.

Unset: there is no HTTP server.
""",
    ),
    cfg.HostAddressOpt(
        'bind_host',
        default='127.0.0.1',
        help="""
The address that the HTTP server listens on.

Any but a loopback address needs ``token_file`` or ``ca_file``.
""",
    ),
    cfg.StrOpt(
        'token_file',
        help="""
The path of a file with the bearer token that clients have to send.

A browser asks for it: any name, and the token as the password.
``/healthcheck`` and ``/readyz`` need no token.
""",
    ),
    cfg.StrOpt(
        'cert_file',
        help='The path of the server certificate; turns HTTPS on.',
    ),
    cfg.StrOpt(
        'key_file',
        help="The path of the server certificate's key.",
    ),
    cfg.StrOpt(
        'ca_file',
        help="""
The path of the CA of client certificates, which are accepted in place of the
token.
""",
    ),
    cfg.ListOpt(
        'allowed_hosts',
        default=[],
        help="""
The names in the header ``Host`` of requests without token and certificate.

``localhost`` and loopback addresses are always accepted. Other names get
status 403, so that a web page whose name resolves to this machine reads
nothing. The option has no effect if ``token_file`` or ``ca_file`` is set.
""",
    ),
    cfg.ListOpt(
        'roles',
        default=['admin'],
        help="""
The roles of clients of ``/v1`` in the rules of the policy.

The token or the certificate admits a client; the policy grants its actions by
these roles. The name of a certificate (CN) is the client's ``user_id``.
""",
    ),
    cfg.BoolOpt(
        'pages',
        default=True,
        help="""
Whether pages for browsers are served: decisions, and why.

They show what ``/v1`` says, to those whom it admits.
""",
    ),
    cfg.IntOpt(
        'threads',
        default=8,
        min=1,
        max=128,
        help="""
The threads for requests of ``/v1``, and as many more for binds of pods.

Filtering and scoring for a kube-scheduler, health and metrics run on other
threads.
""",
    ),
    cfg.FloatOpt(
        'request_timeout',
        default=10.0,
        min=0.1,
        help="""
How long a client may take to send a request, in seconds.

The connection of a slower client is closed. The limit also applies to a TLS
handshake, and to a client that receives nothing more of its reply.
""",
    ),
    cfg.FloatOpt(
        'idle_timeout',
        default=120.0,
        min=1.0,
        help="""
How long an idle connection stays open, in seconds.

A client has as long to read a whole reply. A kube-scheduler closes its idle
connections after 90 s: use a longer time.
""",
    ),
    cfg.IntOpt(
        'max_connections',
        default=2000,
        min=1,
        help="""
The most open connections.

At the limit, a new connection replaces the longest idle connection of the
client with most connections. Each connection needs an open file: the limit of
open files (``LimitNOFILE`` of systemd) has to be larger by 512, and is raised
if that is allowed.
""",
    ),
    cfg.IntOpt(
        'max_connections_per_address',
        default=500,
        min=1,
        help="""
The most open connections of an address.

At the limit, a new connection replaces the address's longest idle connection.
The addresses of an IPv6 /64 network count as one address.
""",
    ),
    cfg.IntOpt(
        'max_body_bytes',
        default=64 * 1024 * 1024,
        min=1024,
        help="""
The most bytes of a request body; a larger body gets status 413.

The limit applies before and after decompression. All bodies that are arriving
at a time may have four times as many bytes; a body beyond that gets status
503.
""",
    ),
]
