"""What pages answer to questions that are wrong, and what the database costs.

Over HTTP, without a browser.
"""

from __future__ import annotations

import json
from typing import Any
from urllib import parse

import pytest

from scheduler_service.pages import decisions
from tests.support.browsers import HOSTILE
from tests.support.http_client import HttpClient
from tests.support.services import Service


@pytest.fixture
def http(daemon: Service, port: int) -> Any:
    client = HttpClient(daemon, port)
    yield client
    client.close()


def ask(http: HttpClient, path: str, **query: str) -> tuple[int, str]:
    asked = f'?{parse.urlencode(query)}' if query else ''
    return http.send('GET', f'{path}{asked}')


@pytest.mark.parametrize(
    ('path', 'query', 'status', 'told'),
    [
        ('/decisions/req-chosem', {}, 404, 'is req-chosen meant?'),
        ('/decisions/req-refused', {'host': 'compute-7'}, 404,
         'is compute-4 meant?'),
        ('/decisions/req-refused', {'hots': 'a'}, 400, 'hots: not a param'),
        ('/decisions', {'host': 'compute-7'}, 200, 'is compute-4 meant?'),
        ('/decisions', {'filter': 'RamFiler'}, 200, 'is RamFilter meant?'),
        ('/decisions', {'until': '31.12.'}, 400, 'until: '),
        ('/decisions', {'before': '-1'}, 400, 'before: expected an integer'),
        ('/try', {'request': 'flavor: {vcpus: 1, memory: 2}'}, 400,
         'flavor.memory'),
        ('/try', {'request': 'a: [1'}, 400, 'line 1'),
        ('/try', {'request': 'a: 1\na: 2'}, 400, 'twice'),
        ('/try', {'request': '3'}, 400, 'expected an object'),
        ('/try', {'flavor': 'vcpus'}, 400, 'KEY=VALUE'),
        ('/try', {'hints': 'group'}, 400, 'hints: expected KEY=VALUE'),
        ('/try', {'num_instances': 'two'}, 400, 'num_instances: '),
        ('/try', {'flavor': 'vcpus=1', 'request': '{}'}, 400, 'flavor: '),
        ('/try', {'flavor': 'vcpus=1', 'host': 'compute-7'}, 404,
         'is compute-4 meant?'),
        ('/try', {'request': 'a' * decisions.MOST_BYTES}, 413,
         'bytes, and may have 6000'),
        ('/try', {'request': 'a' * 60_000}, 413,
         'bytes, and may have 6000'),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_question_is_said(
    http: HttpClient, path: str, query: dict[str, str], status: int, told: str
) -> None:
    found, body = ask(http, path, **query)
    assert (found, told in body) == (status, True), body
    assert '<h1>' in body


def test_a_trial_has_what_explain_returns(http: HttpClient) -> None:
    fields = {
        'flavor': 'vcpus=2,memory_mb=512', 'zone': 'north',
        'traits': 'HW_ONE, !HW_TWO', 'extra_specs': 'hw:a=b\r\n\r\n',
        'hints': 'same_host=x', 'num_instances': '2', 'project_id': 'p',
    }  # fmt: skip
    request = {
        'flavor': {
            'vcpus': 2, 'memory_mb': 512,
            'extra_specs': {'hw:a': 'b', 'trait:HW_ONE': 'required',
                            'trait:HW_TWO': 'forbidden'},
        },
        'availability_zone': 'north', 'scheduler_hints': {'same_host': 'x'},
        'num_instances': 2, 'project_id': 'p',
    }  # fmt: skip
    by_fields = ask(http, '/try', **fields)
    by_json = ask(http, '/try', request=json.dumps(request))
    _, told = http.send('POST', '/v1/explain', {'request': request})
    # What stands between the two times.
    results = [
        body.rpartition(', as of ')[2]
        .partition('</h2>')[2]
        .partition('<footer')[0]
        for _, body in (by_fields, by_json)
    ]
    assert results[0] == results[1]
    for cause in told['error']['facts']['filters']:
        assert f'<th scope="row">{cause["filter"]}<' in results[0]


def test_a_request_that_was_decided_can_be_tried_again(
    http: HttpClient,
) -> None:
    for request_id, verdict in (
        ('req-chosen', '<h2>Chosen'), (HOSTILE, '<h2>Refused'),
    ):  # fmt: skip
        _, body = ask(http, f'/decisions/{parse.quote(request_id, safe="")}')
        link = body.partition('href="/try?')[2].partition('"')[0]
        status, tried = http.send('GET', f'/try?{link}')
        assert (status, verdict in tried) == (200, True), tried
    # One that is too long for a link is shown, and has none.
    _, body = ask(http, '/decisions/req-long')
    assert 'href="/try?' not in body
    assert 'Try it again' not in body


def test_decisions_are_those_of_a_user(http: HttpClient) -> None:
    for user, is_there in (('u', True), ('nobody', False)):
        _, body = ask(http, '/decisions', user=user)
        assert ('href="/decisions/req-chosen"' in body) is is_there
        assert f'name="user" value="{user}"' in body


def test_older_decisions_are_linked(http: HttpClient) -> None:
    seen = []
    query = 'limit=2'
    while query:
        _, body = http.send('GET', f'/decisions?{query}')
        rows = body.partition('<tbody>')[2].split('<tr>')[1:]
        seen += [row.partition('href="/decisions/')[2].partition('"')[0]
                 for row in rows]  # fmt: skip
        query = body.partition('href="/decisions?')[2].partition('"')[0]
        query = query.replace('&amp;', '&')
    assert len(seen) == len(set(seen)) == 5
