"""Requests and replies over TLS: long ones, slow readers, the end."""

import json
import socket
import ssl
import time
from typing import Any

import pytest

from tests.support import extenders, raw_http
from tests.support.waiting import LIMIT_S, wait_until

# For how long a client may read nothing of a reply, in seconds.
UNREAD_S = 5.0


@pytest.fixture
def connect(serve_http, tmp_path):
    """Connect over TLS to a daemon; with a limited buffer if asked for."""
    certs = extenders.certificates(tmp_path)
    http = serve_http(
        http__cert_file=str(certs.server[0]),
        http__key_file=str(certs.server[1]),
        http__request_timeout=UNREAD_S,
    )
    made: list[ssl.SSLSocket] = []

    def connect(
        version: Any = None, buffer: int = 0, ciphers: str = ''
    ) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=str(certs.ca))
        if ciphers:
            context.set_ciphers(ciphers)
        if version is not None:
            context.maximum_version = version
        sock = socket.socket()
        if buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        sock.settimeout(LIMIT_S)
        sock.connect(('127.0.0.1', http.port))
        # An end without a notice would be an error.
        made.append(
            context.wrap_socket(
                sock, server_hostname='localhost', suppress_ragged_eofs=False
            )
        )
        return made[-1]

    connect.http = http
    yield connect
    for sock in made:
        sock.close()


def filter_call(count: int, size: int = 0) -> bytes:
    """Return a call with nodes of some bytes, none of them stored."""
    items = [
        {'metadata': {'name': f'n{at}', 'labels': {'filler': 'x' * size}}}
        for at in range(count)
    ]
    body = json.dumps({'Pod': {}, 'Nodes': {'items': items}}).encode()
    return raw_http.post(
        '/extender/filter', f'Content-Length: {len(body)}', body=body
    )


@pytest.mark.parametrize(
    'version', [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
)
def test_long_requests_and_replies_arrive_whole(connect, version):
    sock = connect(version)
    for count in (1, 300, 1):
        sock.sendall(filter_call(count, 10_000))
        status, body = raw_http.read_reply(sock)
        assert status == 200
        assert len(json.loads(body)['Nodes']['items']) == count


@pytest.mark.parametrize('bits', [128, 256])
def test_the_client_says_which_cipher_it_likes_best(connect, bits):
    """Both are strong, and one may cost its processor more."""
    names = {128: 'AES128-GCM-SHA256', 256: 'AES256-GCM-SHA384'}
    ciphers = [
        f'ECDHE-{key}-{names[size]}'
        for size in (bits, 384 - bits)
        for key in ('ECDSA', 'RSA')
    ]
    sock = connect(ssl.TLSVersion.TLSv1_2, ciphers=':'.join(ciphers))
    assert sock.cipher()[2] == bits


def test_requests_that_arrive_in_pieces_are_answered_in_order(connect):
    sock = connect()
    calls = filter_call(2) + filter_call(3) + filter_call(4)
    for at in range(0, len(calls), 100):
        sock.sendall(calls[at : at + 100])
    reader = sock.makefile('rb')
    for count in (2, 3, 4):
        head = b''
        while not head.endswith(b'\r\n\r\n'):
            head += reader.readline()
        size = int(head.lower().partition(b'content-length: ')[2].split()[0])
        body = json.loads(reader.read(size))
        assert len(body['Nodes']['items']) == count


def test_slow_readers_get_all_of_a_reply_and_hold_up_nobody(connect):
    slow = connect(buffer=4096)
    slow.sendall(filter_call(2000, 5000))
    other = connect()
    other.sendall(filter_call(1))
    assert raw_http.read_reply(other)[0] == 200
    # The reply is longer than what the sockets hold.
    time.sleep(0.2)
    status, body = raw_http.read_reply(slow)
    assert status == 200
    assert len(json.loads(body)['Nodes']['items']) == 2000


def test_the_end_is_announced(connect):
    sock = connect()
    sock.sendall(raw_http.post('/extender/filter', 'Connection: close'))
    assert raw_http.read_reply(sock)[0] == 400
    assert sock.recv(100) == b''


def test_connections_are_forgotten_however_they_end(connect):
    server = connect.http.service.daemon.http.server
    rude, plain, polite = connect(), connect(), connect()
    for sock in (rude, plain, polite):
        sock.sendall(filter_call(1))
        assert raw_http.read_reply(sock)[0] == 200
    assert len(server.clients) == 3
    rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b'\1\0\0\0\0\0\0\0')
    rude.close()
    plain.shutdown(socket.SHUT_RDWR)
    polite.unwrap().close()
    no_tls = raw_http.connect(connect.http.port)
    no_tls.sendall(b'GET /healthcheck HTTP/1.1\r\nHost: localhost\r\n\r\n')
    assert raw_http.is_closed(no_tls)
    no_tls.close()
    wait_until(lambda: len(server.clients) == 0)


def test_clients_that_never_read_are_dropped_in_time(connect):
    server = connect.http.service.daemon.http.server
    sock = connect(buffer=4096)
    # The reply is longer than what the sockets hold.
    sock.sendall(filter_call(2000, 5000))
    wait_until(lambda: server.clients.closed.get('reads too slowly'))
    wait_until(lambda: len(server.clients) == 0)


def test_suites_that_are_attacked_by_padding_are_refused(connect):
    """AES in CBC mode with a MAC of its own, of TLS 1.2."""
    for suite in ('ECDHE-ECDSA-AES128-SHA256', 'ECDHE-ECDSA-AES256-SHA384',
                  'ECDHE-RSA-AES128-SHA256', 'ECDHE-RSA-AES256-SHA384',
                  'AES128-GCM-SHA256'):  # fmt: skip
        with pytest.raises(OSError):
            connect(ssl.TLSVersion.TLSv1_2, ciphers=suite)
    assert connect(ssl.TLSVersion.TLSv1_2).version() == 'TLSv1.2'
