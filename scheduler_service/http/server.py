"""An HTTP server for a WSGI application, in threads of its own.

A response goes out in one write; idle connections stay open for longer than
clients keep them; the connection of a client that is slow to send is closed.
The dictionary of arriving requests is shared by all of these threads.
"""

from __future__ import annotations

import contextlib
import io
import logging
import socket
import ssl
import threading
import time
from typing import Any

from cheroot import server as stock
from cheroot import wsgi
from cheroot.ssl.builtin import BuiltinSSLAdapter

LOG = logging.getLogger(__name__)
_CHECK_INTERVAL_S = 0.25
_HEADER_BYTES = 64 * 1024
_LINGER_BYTES = 64 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024


class _Gateway(wsgi.Gateway_10):
    """Sends headers and body in one write."""

    def respond(self) -> None:
        """Run the application, then write what it buffered."""
        conn = self.req.conn
        socket_file, conn.wfile = conn.wfile, io.BytesIO()
        try:
            super().respond()
        finally:
            response, conn.wfile = conn.wfile.getvalue(), socket_file
            if response:
                conn.wfile.write(response)


class _Request(stock.HTTPRequest):
    """A request that has to arrive within the time limit."""

    def parse_request(self) -> None:
        """Read request line and headers; the server watches the time."""
        self.server.arriving(self.conn)
        try:
            super().parse_request()
            if not self.ready:
                self._linger()
        finally:
            if not self.ready:
                self.server.arrived(self.conn)

    def respond(self) -> None:
        """Respond; the time limit is off until the next request."""
        try:
            super().respond()
            if self.close_connection:
                self._linger()
        finally:
            self.server.arrived(self.conn)

    def _linger(self) -> None:
        """Drain the request body before the connection is closed.

        A client that is still sending a rejected body would otherwise get a
        connection reset instead of the response.
        """
        with contextlib.suppress(OSError, ValueError):
            size = int(self.inheaders.get(b'Content-Length', 0))
            left = min(getattr(self.rfile, 'remaining', size), _LINGER_BYTES)
            if left > 0:
                self.conn.socket.shutdown(socket.SHUT_WR)
            while left > 0 and (
                chunk := self.conn.rfile.read(min(left, _CHUNK_BYTES))
            ):
                left -= len(chunk)


class _Connection(stock.HTTPConnection):
    RequestHandlerClass = _Request


class Server(wsgi.Server):
    """The server; :meth:`run` starts its threads.

    :param threads: how many requests are processed at the same time
    :param limit: seconds within which a request has to arrive
    :param idle: seconds for which an idle connection stays open
    :param max_bytes: of a request body
    """

    ConnectionClass = _Connection

    def __init__(
        self,
        address: tuple[str, int],
        app: Any,
        threads: int,
        limit: float,
        idle: float,
        max_bytes: int,
    ) -> None:
        super().__init__(
            address, app, numthreads=threads, max=threads,
            request_queue_size=128, timeout=round(idle), shutdown_timeout=2,
        )  # fmt: skip
        self.gateway = _Gateway
        self.nodelay = True
        self.max_request_header_size = _HEADER_BYTES
        self.max_request_body_size = max_bytes
        self.expiration_interval = 1.0
        self._limit = limit
        self._arriving: dict[Any, float] = {}
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for target, name in (
                (self._serve, 'http'),
                (self._close_slow, 'http-slow'),
            )
        ]

    def run(self) -> None:
        """Bind, then serve in threads.

        :raises OSError: the address cannot be used
        """
        self.prepare()
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop serving."""
        self._ended.set()
        self.stop()

    def error_log(
        self, msg: str = '', level: int = 20, traceback: bool = False
    ) -> None:
        """Log errors of connections; most are caused by the client."""
        LOG.debug('%s', msg, exc_info=traceback)

    def arriving(self, conn: Any) -> None:
        """Record that a request has begun to arrive."""
        self._arriving[conn] = time.monotonic() + self._limit

    def arrived(self, conn: Any) -> None:
        """Record that it has arrived, or never will."""
        self._arriving.pop(conn, None)

    def _serve(self) -> None:
        try:
            self.serve()
        except Exception:
            if not self._ended.is_set():
                LOG.exception('The HTTP server failed, and serves no more')

    def _close_slow(self) -> None:
        while not self._ended.wait(_CHECK_INTERVAL_S):
            now = time.monotonic()
            for conn, deadline in list(self._arriving.items()):
                if now > deadline:
                    LOG.info('Closed the connection of a slow client')
                    self.arrived(conn)
                    with contextlib.suppress(OSError):
                        conn.socket.shutdown(socket.SHUT_RDWR)


def tls(cert: str, key: str, ca: str | None) -> Any:
    """Return an adapter that makes the server speak HTTPS.

    :param ca: path of the CA of client certificates, which are optional
    """
    adapter = BuiltinSSLAdapter(cert, key)
    adapter.context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca:
        adapter.context.load_verify_locations(ca)
        adapter.context.verify_mode = ssl.CERT_OPTIONAL
    return adapter
