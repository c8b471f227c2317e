"""Options of the [tracing] group: spans for OpenTelemetry."""

from __future__ import annotations

from oslo_config import cfg

GROUP = 'tracing'

OPTS = [
    cfg.BoolOpt(
        'enabled',
        default=False,
        help="""
Whether requests are traced.

This needs the libraries of ``pip install scheduler-service[tracing]``. Spans
are sent by OTLP over HTTP. The W3C trace context of callers, from a message's
context or the headers of an HTTP request, is continued, and passed on to
extenders and with casts.
""",
    ),
    cfg.StrOpt(
        'endpoint',
        default='http://localhost:4318',
        required=True,
        help='The URL of the collector; ``/v1/traces`` is appended.',
    ),
    cfg.FloatOpt(
        'sample_ratio',
        default=0.01,
        min=0.0,
        max=1.0,
        help="""
The share of requests that is traced.

It applies to requests without a trace context; otherwise the caller has
decided.
""",
    ),
]
