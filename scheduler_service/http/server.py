"""Serves a WSGI application in threads, beside the bus.

What is answered goes out in one write; idle connections are kept for longer
than clients keep them; a client that is slow to send is cut off.
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
_LOOK_S = 0.25
_HEADER_BYTES = 64 * 1024
_LINGER_BYTES = 64 * 1024 * 1024
_PIECE_BYTES = 64 * 1024


class _Gateway(wsgi.Gateway_10):
    """Sends headers and body together, and says when a request is there."""

    def respond(self) -> None:
        """Answer; the buffer goes out once, at the end."""
        conn = self.req.conn
        real, conn.wfile = conn.wfile, io.BytesIO()
        try:
            super().respond()
        finally:
            held, conn.wfile = conn.wfile.getvalue(), real
            if held:
                conn.wfile.write(held)


class _Request(stock.HTTPRequest):
    """A request that has to arrive in time."""

    def parse_request(self) -> None:
        """Read request line and headers, while the server looks on."""
        self.server.arriving(self.conn)
        try:
            super().parse_request()
            if not self.ready:
                self._linger()
        finally:
            if not self.ready:
                self.server.arrived(self.conn)

    def respond(self) -> None:
        """Answer, and forget the connection until its next request."""
        try:
            super().respond()
            if self.close_connection:
                self._linger()
        finally:
            self.server.arrived(self.conn)

    def _linger(self) -> None:
        """Read on before a close that the client does not expect.

        One that still sends a body that was refused would else get an error
        of its socket instead of the answer.
        """
        with contextlib.suppress(OSError, ValueError):
            size = int(self.inheaders.get(b'Content-Length', 0))
            left = min(getattr(self.rfile, 'remaining', size), _LINGER_BYTES)
            if left > 0:
                self.conn.socket.shutdown(socket.SHUT_WR)
            while left > 0 and (
                dropped := self.conn.rfile.read(min(left, _PIECE_BYTES))
            ):
                left -= len(dropped)


class _Connection(stock.HTTPConnection):
    RequestHandlerClass = _Request


class Server(wsgi.Server):
    """The server; :meth:`run` in a thread of its own.

    :param limit: seconds in which a request has to have arrived
    """

    ConnectionClass = _Connection

    def __init__(self, address: tuple[str, int], app: Any, threads: int,
                 limit: float, idle: float, most: int) -> None:  # fmt: skip
        super().__init__(
            address, app, numthreads=threads, max=threads,
            request_queue_size=128, timeout=round(idle), shutdown_timeout=2,
        )  # fmt: skip
        self.gateway = _Gateway
        self.nodelay = True
        self.max_request_header_size = _HEADER_BYTES
        self.max_request_body_size = most
        self.expiration_interval = 1.0
        self._limit = limit
        self._arriving: dict[Any, float] = {}
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for target, name in ((self._serve, 'http'), (self._look, 'slow'))
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
        """Log what a connection went wrong with; it is seldom our affair."""
        LOG.debug('%s', msg, exc_info=traceback)

    def arriving(self, conn: Any) -> None:
        """Note that a request began to arrive."""
        self._arriving[conn] = time.monotonic() + self._limit

    def arrived(self, conn: Any) -> None:
        """Note that it is there, or will not come."""
        self._arriving.pop(conn, None)

    def _serve(self) -> None:
        try:
            self.serve()
        except Exception:
            if not self._ended.is_set():
                LOG.exception('The HTTP face ended')

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_S):
            now = time.monotonic()
            for conn, deadline in list(self._arriving.items()):
                if now > deadline:
                    LOG.info('A slow client is cut off')
                    self.arrived(conn)
                    with contextlib.suppress(OSError):
                        conn.socket.shutdown(socket.SHUT_RDWR)


def tls(cert: str, key: str, ca: str | None) -> Any:
    """Return what makes the server speak https.

    :param ca: of client certificates; they are asked for, not required
    """
    adapter = BuiltinSSLAdapter(cert, key)
    adapter.context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca:
        adapter.context.load_verify_locations(ca)
        adapter.context.verify_mode = ssl.CERT_OPTIONAL
    return adapter
