"""Bodies in chunks, compressed ones, and requests that are not valid."""

import gzip
import json

import pytest

from tests.support import raw_http
from tests.support.raw_http import chunked, post, zipped
from tests.support.waiting import LIMIT_S, wait_until

NAMES = ['compute-1', 'compute-2']
ASKED = {'Pod': {}, 'Nodes': None, 'NodeNames': NAMES}
PLAIN = json.dumps(ASKED).encode()
FILTER = '/extender/filter'
CHUNKED = 'Transfer-Encoding: chunked'
GZIP = 'Content-Encoding: gzip'


def length(body: bytes) -> str:
    return f'Content-Length: {len(body)}'


def members(content: bytes, size: int) -> bytes:
    """Return content in gzip members of some bytes each."""
    return b''.join(
        gzip.compress(content[at : at + size], mtime=0)
        for at in range(0, len(content), size)
    )


EMPTY = gzip.compress(b'', mtime=0)
MEMBERS = members(PLAIN, 5) + EMPTY


@pytest.fixture
def ask(serve_http):
    """Give a function that sends bytes and returns the reply.

    It also gives whether the connection was kept then.
    """
    http = serve_http(http__max_body_bytes=4096, http__request_timeout=2.0)

    def sent(*pieces: bytes):
        with raw_http.connect(http.port) as sock:
            for piece in pieces:
                sock.sendall(piece)
            status, body = raw_http.read_reply(sock)
            return status, json.loads(body), raw_http.is_kept(sock)

    return sent


def test_body_is_read_when_it_is_chunked_or_compressed(ask):
    for headers, body in (
        ([CHUNKED], chunked(PLAIN)),
        ([CHUNKED], chunked(PLAIN, 1)),
        ([CHUNKED], chunked(PLAIN)[:-2] + b'Trailer: x\r\n\r\n'),
        ([GZIP, length(zipped(ASKED))], zipped(ASKED)),
        ([GZIP, CHUNKED], chunked(zipped(ASKED))),
        ([GZIP, length(MEMBERS)], MEMBERS),
        (['Content-Encoding: identity', length(PLAIN)], PLAIN),
    ):
        status, answer, kept = ask(post(FILTER, *headers, body=body))
        told = status, answer['NodeNames'], kept
        assert told == (200, NAMES, True), (headers, body[:80])


def test_api_reads_a_compressed_body_too(ask):
    body = zipped({'request': {'flavor': {'memory_mb': 8193}}})
    status, answer, _ = ask(post('/v1/explain', GZIP, length(body), body=body))
    assert status == 200
    assert 'filters' in answer


BOMB = gzip.compress(b' ' * 5000, mtime=0)
PARTS = members(b' ' * 5000, 1000)


def test_body_is_refused_when_it_cannot_be_read(ask):
    for headers, body, code, name in (
        ([CHUNKED], chunked(b' ' * 5000), 413, 'PayloadTooLarge'),
        ([length(b' ' * 5000)], b' ' * 5000, 413, 'PayloadTooLarge'),
        ([GZIP, length(BOMB)], BOMB, 413, 'PayloadTooLarge'),
        ([GZIP, 'Content-Length: 2'], b'no', 400, 'InvalidRequest'),
        ([GZIP, 'Content-Length: 20'], BOMB[:20], 400, 'InvalidRequest'),
        ([GZIP, length(PARTS)], PARTS, 413, 'PayloadTooLarge'),
        ([GZIP, length(MEMBERS + b'x')], MEMBERS + b'x', 400,
         'InvalidRequest'),
        ([GZIP, length(MEMBERS[:-9])], MEMBERS[:-9], 400, 'InvalidRequest'),
        (['Content-Encoding: br', 'Content-Length: 2'], b'no', 415,
         'UnsupportedEncoding'),
        ([CHUNKED], b'xyz\r\n', 400, 'BadRequest'),
    ):  # fmt: skip
        status, answer, _ = ask(post(FILTER, *headers, body=body))
        told = status, answer['error']['name']
        assert told == (code, name), (headers, body[:80])


def test_connection_is_closed_when_a_request_is_ambiguous(ask):
    """Whoever forwards it may see another end of the request than we do."""
    smuggled = b'0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n'
    for headers in (
        ['Content-Length: 5', CHUNKED],
        [CHUNKED, 'Content-Length: 5'],
        ['Content-Length: 5', 'Content-Length: 6'],
        ['Content-Length: +5'],
        ['Transfer-Encoding: chunked, identity'],
        ['Transfer-Encoding : chunked'],
        ['A: b\r\n folded: c'],
        ['Host: b'],
        ['A: ' + 'b' * 70_000],
    ):
        status, answer, kept = ask(post(FILTER, *headers, body=smuggled))
        assert status in (400, 431), headers
        assert (answer['error']['code'], kept) == (status, False), headers


@pytest.mark.parametrize('first', ['filter', 'explain'])
def test_replies_are_in_order_when_requests_are_pipelined(serve_http, first):
    http = serve_http()
    explain = json.dumps({'request': {'flavor': {'memory_mb': 1}}}).encode()
    requests = {
        'filter': post(FILTER, length(PLAIN), body=PLAIN),
        'explain': post('/v1/explain', length(explain), body=explain),
    }
    health = b'HEAD /healthcheck HTTP/1.1\r\nHost: localhost\r\n\r\n'
    last = health.replace(b'Host', b'Connection: close\r\nHost')
    last = last.replace(b'HEAD /healthcheck', b'GET /nothing')
    with raw_http.connect(http.port) as sock:
        sock.sendall(requests[first] + health * 300 + last)
        text = b''.join(iter(lambda: sock.recv(65536), b''))
    assert text.count(b'HTTP/1.1 200 OK\r\n') == 301
    # A reply to HEAD has the length of the body, and no body.
    assert text.count(b'Content-Length: 2\r\n') == 300
    assert b'\r\n\r\nOK' not in text
    assert text.index(b'{') < text.index(b'Content-Length: 2\r\n')
    assert text.index(b'HTTP/1.1 404 ') > text.rindex(b'HTTP/1.1 200 ')


def test_client_is_told_to_continue_when_it_waits_for_that(serve_http):
    http = serve_http(http__max_body_bytes=4096)
    head = post(FILTER, length(PLAIN), 'Expect: 100-continue')
    with raw_http.connect(http.port) as sock:
        sock.sendall(head)
        assert sock.recv(100) == b'HTTP/1.1 100 Continue\r\n\r\n'
        sock.sendall(PLAIN)
        assert raw_http.read_reply(sock)[0] == 200
        sock.sendall(
            post(FILTER, 'Content-Length: 9999', 'Expect: 100-continue')
        )
        # Refused at once: the body is not asked for.
        assert raw_http.read_reply(sock)[0] == 413


def test_connection_of_http_1_0_is_kept_when_it_asks_for_that(serve_http):
    http = serve_http()
    kept = b'GET /healthcheck HTTP/1.0\r\nConnection: keep-alive\r\n\r\n'
    with raw_http.connect(http.port) as sock:
        for _ in range(2):
            sock.sendall(kept)
            assert raw_http.read_reply(sock) == (200, b'OK')
        sock.sendall(b'GET /healthcheck HTTP/1.0\r\n\r\n')
        assert raw_http.read_reply(sock) == (200, b'OK')
        assert raw_http.is_closed(sock)


def test_bytes_of_bodies_are_freed_however_requests_end(serve_http):
    """Otherwise the server would refuse all bodies after a while."""
    http = serve_http(http__max_body_bytes=4096, http__request_timeout=0.5)
    limits = http.service.daemon.http.server.clients
    body = b' ' * 4000
    pieces = (
        post(FILTER, length(body), body=body),
        post(FILTER, length(body), body=body[:-1]),
        post(FILTER, CHUNKED, body=chunked(body, 1000)[:-5]),
        post(FILTER, CHUNKED, body=chunked(body * 2, 1000)),
        post(FILTER, CHUNKED, body=chunked(body, 1000)[:-5] + b'xyz\r\n'),
        post(FILTER, length(PLAIN), body=PLAIN) * 9,
        post(FILTER, length(body), 'Connection: close', body=body) * 2,
    )
    for piece in pieces:
        for waits in (True, False):
            with raw_http.connect(http.port) as sock:
                sock.sendall(piece)
                if waits:
                    may_stay = piece in (pieces[0], pieces[3], pieces[5])
                    seconds = 0.1 if may_stay else LIMIT_S
                    assert raw_http.is_closed(sock, seconds) or may_stay
    wait_until(lambda: limits.buffered == 0)
    assert len(limits) <= 1
