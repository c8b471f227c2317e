"""Connections of HTTP clients: kept, slow and idle ones."""

from __future__ import annotations

import socket
import time


def test_connection_is_kept_when_a_request_is_answered(serve_http):
    http = serve_http()
    with socket.create_connection(('127.0.0.1', http.port)) as sock:
        for _ in range(3):
            sock.sendall(b'GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n')
            sock.settimeout(5)
            first = sock.recv(65536)
            assert b'\r\n\r\n{' in first
            time.sleep(0.1)


def test_idle_connections_live_longer_than_the_90_s_of_clients(serve_http):
    http = serve_http()
    assert http.service.daemon.http.server.timeout > 90


def test_others_are_served_when_clients_are_slow(serve_http):
    http = serve_http(http__threads=2, http__request_timeout=1.0)
    slow = []
    for _ in range(6):
        sock = socket.create_connection(('127.0.0.1', http.port))
        sock.sendall(
            b'POST /v1/explain HTTP/1.1\r\nHost: a\r\n'
            b'Content-Length: 1000\r\n\r\n{'
        )
        slow.append(sock)
    start = time.monotonic()
    assert http.send('GET', '/healthcheck') == (200, 'OK')
    assert time.monotonic() - start < 8
    for sock in slow:
        sock.close()
