"""A server on a thread, for what a handler says in JSON."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any


class JsonHandler(http.server.BaseHTTPRequestHandler):
    """Reads and writes JSON, on connections that are kept."""

    protocol_version = 'HTTP/1.1'

    def asked(self) -> Any:
        """Return the body of the request."""
        return json.loads(self.rfile.read(int(self.headers['Content-Length'])))

    def say(self, status: int, document: Any) -> None:
        """Answer the request."""
        text = json.dumps(document).encode()
        self.send_response(status)
        self.send_header('Content-Length', str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


class JsonServer(http.server.ThreadingHTTPServer):
    """Listens on a free port of loopback."""

    daemon_threads = True

    def __init__(self, handler: type[JsonHandler]) -> None:
        super().__init__(('127.0.0.1', 0), handler)

    @property
    def url(self) -> str:
        """Where it is."""
        return f'http://127.0.0.1:{self.server_port}'

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Serve for as long as the block runs."""
        with self:
            thread = threading.Thread(
                target=self.serve_forever, kwargs={'poll_interval': 0.02}
            )
            thread.start()
            try:
                yield
            finally:
                self.shutdown()
                thread.join()
