"""Connections of HTTP clients: kept, slow and idle ones."""

from __future__ import annotations

import socket
import threading
import time

from tests.support import raw_http


def test_connection_is_kept_when_a_request_is_answered(serve_http):
    http = serve_http()
    with socket.create_connection(('127.0.0.1', http.port)) as sock:
        for _ in range(3):
            sock.sendall(b'GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n')
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
            b'POST /v1/explain HTTP/1.1\r\nHost: localhost\r\n'
            b'Content-Length: 1000\r\n\r\n{'
        )
        slow.append(sock)
    start = time.monotonic()
    assert http.send('GET', '/healthcheck') == (200, 'OK')
    assert time.monotonic() - start < 8
    for sock in slow:
        sock.close()


def test_replies_of_a_server_that_stops_end_their_connections(
    serve_http, monkeypatch
):
    """Their clients do not send another request to nobody."""
    http = serve_http()
    scheduler = http.service.daemon.scheduler
    explain = scheduler.explain
    begun = threading.Event()

    def slowly(*args):
        begun.set()
        time.sleep(0.5)
        return explain(*args)

    monkeypatch.setattr(scheduler, 'explain', slowly)
    with socket.create_connection(('127.0.0.1', http.port)) as sock:
        sock.settimeout(10)
        sock.sendall(
            b'POST /v1/explain HTTP/1.1\r\nHost: localhost\r\n'
            b'Content-Length: 15\r\n\r\n{"request": {}}'
        )
        assert begun.wait(10)
        http.service.daemon.http.server.end()
        head = sock.recv(65536).split(b'\r\n\r\n')[0].lower()
    assert head.startswith(b'http/1.1 200')
    assert b'connection: close' in head


def test_an_offer_to_upgrade_is_ignored(serve_http):
    http = serve_http()
    with socket.create_connection(('127.0.0.1', http.port)) as sock:
        sock.settimeout(10)
        sock.sendall(
            b'POST /v1/explain HTTP/1.1\r\nHost: localhost\r\n'
            b'Connection: Upgrade\r\nUpgrade: h2c\r\n'
            b'Content-Length: 15\r\n\r\n{"request": {}}'
        )
        status, body = raw_http.read_reply(sock)
    assert status == 200
    assert b'filters' in body
