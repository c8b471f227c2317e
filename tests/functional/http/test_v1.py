"""The HTTP API: explain, decisions, and its errors."""

from __future__ import annotations

import contextlib
import socket
import time
from datetime import datetime
from urllib import parse

import pytest

from scheduler_service import errors
from tests.support.documents import CONTEXT, SMALL
from tests.support.waiting import LIMIT_S, wait_until


def test_decisions_are_listed_when_they_were_recorded(serve_http):
    http = serve_http()
    status, told = http.send(
        'POST', '/v1/explain',
        {'request': {'flavor': {'memory_mb': 8193}}, 'host': 'compute-1'},
    )  # fmt: skip
    assert status == 200
    assert told['nodes'][0]['host'] == 'compute-1'
    http.service.client.select_destinations(
        CONTEXT, {'flavor': SMALL, 'request_id': 'req-1'}
    )
    wait_until(lambda: http.send('GET', '/v1/decisions')[1]['decisions'])
    status, told = http.send('GET', '/v1/decisions?limit=5')
    assert [one['request_id'] for one in told['decisions']] == ['req-1']
    status, told = http.send('GET', '/v1/decisions/req-1')
    assert told['decisions'][0]['explanation']['hosts'] == 4


WRONG = [
    ('GET', '/v1/decisions/none', None, 404, 'DecisionNotFound'),
    ('GET', '/v1/decisions?limit=x', None, 400, 'InvalidRequest'),
    ('GET', '/v1/decisions?limit=0', None, 400, 'InvalidRequest'),
    ('POST', '/v1/explain', b'{', 400, 'InvalidRequest'),
    ('POST', '/v1/explain', b'', 400, 'InvalidRequest'),
    ('POST', '/v1/explain', b'[' * 9999, 400, 'InvalidRequest'),
    ('POST', '/v1/explain', b'{"request": {}, "request": {}}', 400,
     'InvalidRequest'),
    ('POST', '/v1/explain', {'request': {'flavor': 1}}, 400,
     'InvalidRequest'),
    ('POST', '/v1/explain', {'request': {}, 'host': 'no'}, 404,
     'HostNotFound'),
    ('POST', '/v1/explain', b' ' * 1100000, 413, 'PayloadTooLarge'),
    ('GET', '/nothing', None, 404, 'RouteNotFound'),
    ('DELETE', '/v1/decisions', None, 405, 'MethodNotAllowed'),
    ('GET', '/extender/filter', None, 405, 'MethodNotAllowed'),
    ('POST', '/extender/filter', b'no', 400, 'InvalidRequest'),
    ('POST', '/v1/explain', b'{"request": {"project_id": "\\ud800"}}',
     400, 'InvalidRequest'),
    ('POST', '/extender/bind', b'{}', 404, 'RouteNotFound'),
    ('POST', '/v1/explain', b'{"request": {"flavor": {"vcpus": 1e400}}}',
     400, 'InvalidRequest'),
]  # fmt: skip


def test_error_has_status_and_name_when_a_request_is_wrong(serve_http):
    http = serve_http()
    for method, path, body, code, name in WRONG:
        status, told = http.send(method, path, body)
        asked = method, path, str(body)[:80]
        assert (status, told['error']['name']) == (code, name), asked


@pytest.mark.parametrize('most', [4096, 64 * 1024 * 1024])
def test_refusal_is_read_when_the_client_is_still_sending(serve_http, most):
    http = serve_http(http__max_body_bytes=most)
    size = 3_000_000
    with socket.create_connection(('127.0.0.1', http.port)) as sock:
        sock.settimeout(LIMIT_S)
        sock.sendall(
            b'POST /v1/explain HTTP/1.1\r\nHost: localhost\r\n'
            b'Content-Length: %d\r\n\r\n' % size
        )
        # The answer is there, and closed, before the body comes.
        time.sleep(0.3)
        for _ in range(size // 100_000):
            sock.sendall(b' ' * 100_000)
        answer = b''.join(iter(lambda: sock.recv(65536), b''))
    assert answer.startswith(b'HTTP/1.1 413 ')


def test_parameters_that_a_resource_does_not_have_are_refused(serve_http):
    http = serve_http()
    for method, path, at in (
        ('GET', '/v1/decisions?outcome=refused&Limit=2', 'Limit'),
        ('GET', '/v1/decisions?limit=2&limit=3', 'limit'),
        ('GET', '/v1/decisions?host', 'host'),
        ('GET', '/v1/decisions/req-1?limit=2', 'limit'),
        ('GET', '/v1/openapi.json?a=', 'a'),
        ('POST', '/v1/explain?host=a', 'host'),
        ('GET', '/v1/decisions?outcome=%00', 'outcome'),
    ):
        status, told = http.send(method, path, b'{"request": {}}')
        found = status, told['error']['name'], told['error']['facts']['at']
        assert found == (400, 'InvalidRequest', at), path
    # Those of probes are ignored.
    assert http.send('GET', '/readyz?verbose')[0] == 200
    assert http.send('GET', '/healthcheck?verbose')[0] == 200


def test_decisions_are_selected_as_on_the_command_line(serve_http):
    http = serve_http()
    uuid = '44444444-0000-4000-8000-000000000001'
    for number, flavor in enumerate((SMALL, {'vcpus': 999}, SMALL)):
        request = {
            'flavor': flavor,
            'request_id': f'req-{number}',
            'instance_uuids': [f'{uuid[:-1]}{number}'],
        }
        with contextlib.suppress(errors.NoValidHost):
            http.service.client.select_destinations(CONTEXT, request)
    wait_until(
        lambda: len(http.send('GET', '/v1/decisions')[1]['decisions']) == 3
    )

    def found(query):
        status, told = http.send('GET', f'/v1/decisions?{query}')
        assert status == 200
        ids = [one['request_id'] for one in told['decisions']]
        return ids, told['more']

    assert found('limit=2') == (['req-2', 'req-1'], True)
    assert found('limit=3') == (['req-2', 'req-1', 'req-0'], False)
    assert found('since=1h&filter=CoreFilter') == (['req-1'], False)
    assert found('outcome=refused') == (['req-1'], False)
    assert found('outcome=NoValidHost&limit=1') == (['req-1'], False)
    assert found('limit=2&outcome=chosen') == (['req-2', 'req-0'], False)
    assert found('outcome=HostNotFound') == ([], False)
    assert found(f'instance={uuid.upper()}') == (['req-1'], False)
    assert found('until=1h') == ([], False)
    assert found('host=compute-4&project=' + CONTEXT['project_id'])[0]
    _, told = http.send('GET', '/v1/decisions?limit=1')
    since = told['decisions'][0]['created_at']
    assert datetime.fromisoformat(since).tzinfo is not None
    # Decisions of one transaction have the same time.
    assert found('since=' + parse.quote(since))[0][0] == 'req-2'
    status, told = http.send('GET', '/v1/decisions?since=yesterday')
    assert (status, told['error']['facts']) == (400, {'at': 'since'})
    status, told = http.send('GET', f'/v1/decisions/{uuid}')
    assert told['decisions'][0]['request_id'] == 'req-1'
