"""Options of the [tracing] group: spans for OpenTelemetry."""

from __future__ import annotations

from typing import Any

from oslo_config import cfg

GROUP = 'tracing'

OPTS = [
    cfg.BoolOpt(
        'enabled',
        default=False,
        help="""
Whether requests are traced.

This needs the libraries of ``pip install scheduler-service[tracing]``. Spans
are sent by OTLP over HTTP. The W3C context of callers is taken, from the
context of a message or the headers of an HTTP request, and handed on to
extenders and with casts.
""",
    ),
    cfg.StrOpt(
        'endpoint',
        default='http://localhost:4318',
        help='URL of the collector; ``/v1/traces`` is added.',
    ),
    cfg.FloatOpt(
        'sample_ratio',
        default=0.01,
        min=0.0,
        max=1.0,
        help="""
Which share of the requests is traced.

It counts where the caller sent no trace of its own: then the caller has
decided.
""",
    ),
]


def register_opts(conf: Any) -> None:
    """Register this module's options on *conf*."""
    conf.register_opts(OPTS, group=GROUP)
