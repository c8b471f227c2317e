"""Bytes to an HTTP server, and what it answers, without a client library."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import resource
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Any

from tests.support.waiting import LIMIT_S


def connect(port: int, source: str = '127.0.0.1') -> socket.socket:
    """Connect from a loopback address."""
    sock = socket.create_connection(
        ('127.0.0.1', port), LIMIT_S, source_address=(source, 0)
    )
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def read_reply(sock: socket.socket) -> tuple[int, bytes]:
    """Read one reply from a connection; return status and body."""
    reply = http.client.HTTPResponse(sock)
    reply.begin()
    return reply.status, reply.read()


def is_closed(sock: socket.socket, seconds: float = LIMIT_S) -> bool:
    """Whether the server closes a connection within a time."""
    sock.settimeout(seconds)
    try:
        while sock.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def is_kept(sock: socket.socket) -> bool:
    """Whether the server answers another request on a connection."""
    try:
        sock.sendall(b'GET /healthcheck HTTP/1.1\r\nHost: localhost\r\n\r\n')
        return read_reply(sock) == (200, b'OK')
    except (OSError, http.client.HTTPException):
        return False


def post(path: str, *lines: str, body: bytes = b'') -> bytes:
    """Return the bytes of a POST with these further header lines."""
    head = [f'POST {path} HTTP/1.1', 'Host: localhost', *lines]
    return '\r\n'.join([*head, '', '']).encode('latin-1') + body


def chunked(body: bytes, size: int = 7) -> bytes:
    """Return a body in chunks."""
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b''.join(
        b'%x\r\n%s\r\n' % (len(piece), piece) for piece in [*pieces, b'']
    )


def zipped(document: Any) -> bytes:
    """Return a document as JSON, compressed."""
    return gzip.compress(json.dumps(document).encode(), mtime=0)


def healthcheck_seconds(
    port: int, context: ssl.SSLContext | None = None, turns: int = 9
) -> float:
    """Return the least time of a health check, each on a new connection.

    What else the machine does only adds to it.
    """
    times = []
    for _ in range(turns):
        start = time.monotonic()
        with contextlib.ExitStack() as stack:
            sock = stack.enter_context(connect(port))
            if context is not None:
                sock = stack.enter_context(
                    context.wrap_socket(sock, server_hostname='localhost')
                )
            sock.sendall(
                b'GET /healthcheck HTTP/1.1\r\nHost: localhost\r\n\r\n'
            )
            assert read_reply(sock) == (200, b'OK')
        times.append(time.monotonic() - start)
    return min(times)


@contextlib.contextmanager
def open_files(count: int) -> Iterator[bool]:
    """Let this process open *count* files; give whether it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = hard == resource.RLIM_INFINITY or hard >= count
    if allowed and soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield allowed
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
