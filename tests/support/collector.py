"""A collector of OpenTelemetry on loopback, which takes spans over HTTP."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import http.server
import threading
from collections.abc import Iterator
from typing import Any

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from tests.support.waiting import wait_until


@dataclasses.dataclass
class Span:
    """A span, ids in hexadecimal, times in nanoseconds."""

    name: str
    trace: str
    id: str
    parent: str
    start: int
    end: int
    attributes: dict[str, Any]


@dataclasses.dataclass
class Collector:
    """The spans that have come so far."""

    endpoint: str = ''
    spans: list[Span] = dataclasses.field(default_factory=list)

    def named(self, name: str) -> list[Span]:
        """Return the spans of a name."""
        return [span for span in list(self.spans) if span.name == name]

    def wait_for(self, *names: str) -> dict[str, Span]:
        """Wait for a span of each name; return the first ones."""
        wait_until(lambda: all(map(self.named, names)))
        return {name: self.named(name)[0] for name in names}

    def take(self, body: bytes) -> None:
        """Take a request's body."""
        asked = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
        for resource in asked.resource_spans:
            for scope in resource.scope_spans:
                self.spans += [_span(span) for span in scope.spans]


def _span(one: Any) -> Span:
    attributes = {
        item.key: getattr(item.value, item.value.WhichOneof('value'))
        for item in one.attributes
    }
    return Span(
        one.name, one.trace_id.hex(), one.span_id.hex(),
        one.parent_span_id.hex(), one.start_time_unix_nano,
        one.end_time_unix_nano, attributes,
    )  # fmt: skip


@contextlib.contextmanager
def collector() -> Iterator[Collector]:
    """Run a collector until the block ends."""
    found = Collector()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers['Content-Length']))
            if self.headers['Content-Encoding'] == 'gzip':
                body = gzip.decompress(body)
            found.take(body)
            self.send_response(200)
            self.send_header('Content-Length', '0')
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Print nothing."""

    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(
        target=server.serve_forever, kwargs={'poll_interval': 0.02}
    )
    thread.start()
    found.endpoint = f'http://127.0.0.1:{server.server_address[1]}'
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
