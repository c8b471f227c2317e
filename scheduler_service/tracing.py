"""Spans of requests for OpenTelemetry, where ``[tracing] enabled`` is set.

A trace begins when a message or an HTTP request arrives, with the W3C context
that came with it. Stages are added when they are over, with the times that
they took, by whichever thread worked on them. Without tracing nothing here is
made, and no library is imported: a request has the trace None.
"""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Iterator, Mapping
from typing import Any

from scheduler_service import errors, time_slice

# Where the W3C context is, in headers and in the context of a message.
CARRIED = ('traceparent', 'tracestate')
# Only the first stages of a message with many requests are sent.
_MOST_STAGES = 200
# How often spans are sent, in milliseconds.
_SEND_MS = 500
_active: contextvars.ContextVar[Trace | None] = contextvars.ContextVar(
    'trace', default=None
)


class Trace:
    """The trace of one message or HTTP request.

    Times are those of ``time.monotonic``. Any thread may add stages.

    :ivar replying_at: when its reply was there to be sent; None: it is not
    """

    __slots__ = ('_offset_ns', '_room', '_span', '_tracer', 'replying_at')

    def __init__(self, tracer: Tracer, span: Any) -> None:
        self._tracer = tracer
        self._span = span
        self._room = _MOST_STAGES
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self.replying_at: float | None = None

    def stage(
        self, name: str, start: float, end: float, **attributes: Any
    ) -> None:
        """Add a stage that is over.

        :param attributes: counts and names, sent under ``scheduler.``
        """
        if self._room <= 0:
            return
        self._room -= 1
        offset = self._offset_ns
        span = self._tracer.tracer.start_span(
            name,
            context=self._tracer.context_of(self._span),
            start_time=int(start * 1e9) + offset,
            attributes={f'scheduler.{k}': v for k, v in attributes.items()},
        )
        span.end(int(end * 1e9) + offset)

    def selection(
        self,
        queued_at: float,
        start: float,
        filtered: tuple[float, time_slice.Counts] | None,
        attempts: int,
        instances: int,
    ) -> None:
        """Add the stages of a selection that ends now: wait, filter, weigh.

        :param queued_at: when the request began to wait
        :param filtered: when the filters were done, and what each left; None:
            they were not done
        """
        end = time.monotonic()
        filtered_at, counts = filtered or (end, [])
        passed = counts[-1][2] if counts else 0
        self.stage('wait', queued_at, start, attempts=attempts)
        self.stage(
            'filter',
            start,
            filtered_at,
            hosts=counts[0][1] if counts else 0,
            passed=passed,
            filters=[f'{name}: {after}' for name, _, after in counts],
        )
        if filtered is not None:
            self.stage(
                'weigh', filtered_at, end, hosts=passed, instances=instances
            )

    def headers(self) -> dict[str, str]:
        """Return the W3C context for services that are called."""
        carrier: dict[str, str] = {}
        context = self._tracer.context_of(self._span)
        self._tracer.propagator.inject(carrier, context)
        return carrier

    def end(self, outcome: str) -> None:
        """End it, with its last stage, the reply.

        :param outcome: ``answered``, or the name of the error
        """
        now = time.monotonic()
        if self.replying_at is not None:
            self.stage('reply', self.replying_at, now)
        self._span.set_attribute('scheduler.outcome', outcome)
        self._span.end()


class Tracer:
    """Makes traces, and sends them by OTLP over HTTP.

    :param endpoint: URL of the collector, without ``/v1/traces``
    :param ratio: share of the requests that are traced, 0 to 1, where the
        caller has not decided that already
    :raises ConfigurationError: the libraries are not installed
    """

    def __init__(self, endpoint: str, ratio: float, server: str) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http import trace_exporter
            from opentelemetry.sdk import resources
            from opentelemetry.sdk import trace as sdk
            from opentelemetry.sdk.trace import export, sampling
            from opentelemetry.trace.propagation import tracecontext
        except ImportError as fault:
            raise errors.ConfigurationError(
                f'[tracing] enabled needs more libraries ({fault}): pip '
                'install scheduler-service[tracing]'
            ) from None
        self._kind = trace.SpanKind.SERVER
        self.context_of = trace.set_span_in_context
        self.propagator = tracecontext.TraceContextTextMapPropagator()
        self._provider = sdk.TracerProvider(
            resource=resources.Resource.create(
                {
                    'service.name': 'scheduler-service',
                    'service.instance.id': server,
                }
            ),
            sampler=sampling.ParentBasedTraceIdRatio(ratio),
            shutdown_on_exit=False,
        )
        exporter = trace_exporter.OTLPSpanExporter(
            f'{endpoint.rstrip("/")}/v1/traces'
        )
        self._provider.add_span_processor(
            export.BatchSpanProcessor(exporter, schedule_delay_millis=_SEND_MS)
        )
        self.tracer = self._provider.get_tracer('scheduler_service')

    def begin(self, name: str, carrier: Any) -> Trace | None:
        """Begin a trace now; None where it is not sampled.

        :param carrier: a mapping that may have a W3C context; untrusted
        """
        headers = carrier if isinstance(carrier, Mapping) else {}
        given = {
            key: value
            for key in CARRIED
            if isinstance(value := headers.get(key), str)
        }
        span = self.tracer.start_span(
            name, context=self.propagator.extract(given), kind=self._kind
        )
        return Trace(self, span) if span.is_recording() else None

    def close(self) -> None:
        """Send what waits, and end the thread that sends.

        It may wait long for a collector that does not answer.
        """
        self._provider.shutdown()


def tracer_of(group: Any, server: str) -> Tracer | None:
    """Return what makes traces; None where tracing is off.

    :param group: options of [tracing]
    :param server: name of the daemon
    :raises ConfigurationError: the libraries are not installed
    """
    if not group.enabled:
        return None
    return Tracer(group.endpoint, group.sample_ratio, server)


@contextlib.contextmanager
def working_on(trace: Trace | None) -> Iterator[None]:
    """Have calls that this context makes carry a trace, until the end."""
    token = _active.set(trace)
    try:
        yield
    finally:
        _active.reset(token)


def headers() -> dict[str, str]:
    """Return the headers for a call to another service; usually none."""
    trace = _active.get()
    return {} if trace is None else trace.headers()
