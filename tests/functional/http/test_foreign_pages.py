"""What pages of other sites may have a browser send here, and may read."""

from __future__ import annotations

import http.client
import socket
from base64 import b64encode
from typing import Any

import pytest

from tests.support.waiting import LIMIT_S

# What costs the daemon nothing: another site may link it.
LINKED = ['/', '/decisions', '/try', '/hosts', '/daemons', '/pools',
          '/dns-zones', '/hosts/compute-1']  # fmt: skip
COSTLY = [
    '/why/x', '/try?flavor=vcpus%3D2', '/cloud', '/cloud.png?block=nova',
    '/decisions/x?host=compute-1', '/decisions?outcome=refused',
    '/cloud/zone:nova?1,1', '/v1/capacity?flavor=vcpus%3D1&by=host',
    '/v1/hosts', '/v1/hosts.csv', '/metrics', '/readyz',
    '/static/pages.js',
]  # fmt: skip
LINK = {'Sec-Fetch-Mode': 'navigate', 'Sec-Fetch-Dest': 'document'}
FRAME = {'Sec-Fetch-Mode': 'navigate', 'Sec-Fetch-Dest': 'iframe'}
IMAGE = {'Sec-Fetch-Mode': 'no-cors', 'Sec-Fetch-Dest': 'image'}
FOREIGN = ['cross-site', 'same-site', 'CROSS-SITE', '']
SAFE = {
    'X-Content-Type-Options': 'nosniff',
    'Cross-Origin-Resource-Policy': 'same-origin',
    'Cache-Control': 'no-store',
}


def fetch(
    port: int, path: str, method: str = 'GET', **headers: str
) -> tuple[int, Any]:
    """Send a request; return status and headers."""
    conn = http.client.HTTPConnection('127.0.0.1', port, timeout=LIMIT_S)
    try:
        conn.request(method, path, headers=headers)
        reply = conn.getresponse()
        reply.read()
        return reply.status, reply.headers
    finally:
        conn.close()


@pytest.mark.parametrize('site', FOREIGN)
def test_another_site_may_only_link_what_costs_nothing(serve_http, site):
    port = serve_http().port
    header = {'Sec-Fetch-Site': site}
    for path in LINKED:
        assert fetch(port, path, **header, **LINK)[0] == 200, path
        for how in (FRAME, IMAGE, {}):
            assert fetch(port, path, **header, **how)[0] == 403, path
    for path in COSTLY:
        for how in (LINK, FRAME, IMAGE, {}):
            assert fetch(port, path, **header, **how)[0] == 403, path
    told = fetch(port, '/v1/explain', 'POST', **header, **LINK)
    assert told[0] == 403


@pytest.mark.parametrize('site', ['none', 'same-origin'])
def test_our_own_pages_and_people_may_send_anything(serve_http, site):
    port = serve_http().port
    for path in (*LINKED, '/try?flavor=vcpus%3D2', '/cloud', '/metrics'):
        for how in (LINK, IMAGE):
            status = fetch(port, path, **{'Sec-Fetch-Site': site}, **how)[0]
            assert status == 200, path


def test_a_password_of_a_browser_is_no_leave_for_other_sites(
    serve_http, tmp_path
):
    (tmp_path / 'token').write_text('s3cret\n')
    port = serve_http(http__token_file=str(tmp_path / 'token')).port
    basic = b64encode(b'anybody:s3cret').decode()
    known = {'Authorization': f'Basic {basic}', 'Sec-Fetch-Site': 'cross-site'}
    assert fetch(port, '/cloud', **known, **LINK)[0] == 403
    assert fetch(port, '/metrics', **known, **IMAGE)[0] == 403
    assert fetch(port, '/', **known, **LINK)[0] == 200
    # Whoever has the token itself is no page that borrows it.
    known['Authorization'] = 'Bearer s3cret'
    assert fetch(port, '/metrics', **known, **IMAGE)[0] == 200


def test_every_answer_says_how_a_browser_may_use_it(serve_http):
    http = serve_http()
    for method, path in (
        ('GET', '/'), ('GET', '/static/icon.svg'), ('GET', '/cloud.png'),
        ('GET', '/v1/hosts'), ('GET', '/v1/hosts.csv'),
        ('GET', '/v1/openapi.json'), ('GET', '/metrics'), ('GET', '/readyz'),
        ('HEAD', '/healthcheck'), ('GET', '/v1/hosts/none'),
        ('GET', '/nothing'), ('DELETE', '/v1/hosts'), ('POST', '/v1/explain'),
        ('POST', '/extender/filter'), ('GET', '/v1/hosts?bogus=1'),
    ):  # fmt: skip
        _, headers = fetch(http.port, path, method)
        for name, value in SAFE.items():
            assert headers.get_all(name) == [value], (method, path)
    _, headers = fetch(http.port, '/', Origin='http://page.example')
    assert dict(headers).items() >= SAFE.items()


def test_what_is_not_http_is_answered_with_the_headers(serve_http):
    port = serve_http().port
    for sent in (b'NONSENSE\r\n\r\n', b'GET / HTTP/1.1\r\nA b: c\r\n\r\n'):
        with socket.create_connection(('127.0.0.1', port), LIMIT_S) as sock:
            sock.sendall(sent)
            reply = http.client.HTTPResponse(sock)
            reply.begin()
            assert reply.status == 400
            assert dict(reply.headers).items() >= SAFE.items()


def test_an_error_while_a_page_of_an_error_is_made_has_the_headers(
    serve_http,
):
    served = serve_http()
    router = served.service.daemon.http.server.clients.router

    def fail(*_):
        raise ZeroDivisionError

    router.show_error = fail
    with socket.create_connection(('127.0.0.1', served.port), LIMIT_S) as sock:
        sock.sendall(b'GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n')
        reply = http.client.HTTPResponse(sock)
        reply.begin()
        assert reply.status == 500
        assert dict(reply.headers).items() >= SAFE.items()
