"""What all pages have in common: routes, access, headers and errors."""

from __future__ import annotations

import http.client
import re

import pytest

from scheduler_service.pages.frame import MENU
from tests.support.waiting import LIMIT_S

PAGES = [*MENU]
STATIC = ['/static/icon.svg', '/static/pages.css', '/static/pages.js']
BROWSER = {'Accept': 'text/html,application/xhtml+xml,*/*;q=0.8'}
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "form-action 'self'; connect-src 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)


def fetch(
    port: int, path: str, method: str = 'GET', **headers: str
) -> tuple[int, http.client.HTTPMessage, str]:
    """Send a request; return status, headers and body."""
    conn = http.client.HTTPConnection('127.0.0.1', port, timeout=LIMIT_S)
    try:
        conn.request(method, path, headers=headers)
        reply = conn.getresponse()
        return reply.status, reply.headers, reply.read().decode()
    finally:
        conn.close()


def check_safety(headers: http.client.HTTPMessage) -> None:
    """Check the headers that keep a browser from doing more than it has to."""
    assert headers['Content-Security-Policy'] == POLICY
    assert headers['Referrer-Policy'] == 'no-referrer'
    assert headers['X-Content-Type-Options'] == 'nosniff'
    assert headers['Cache-Control'] == 'no-store'


@pytest.mark.parametrize('method', ['GET', 'HEAD'])
def test_pages_and_their_files_are_read_and_have_the_headers(
    serve_http, method
):
    port = serve_http().port
    for path in [*PAGES, *STATIC]:
        status, headers, body = fetch(port, path, method)
        assert (status, bool(body)) == (200, method == 'GET'), path
        check_safety(headers)
        # Nothing inline, which the policy would not run anyway.
        assert not re.search(r'<style|style=|<script>| on\w+=', body)


def test_other_methods_are_refused_as_a_page(serve_http):
    port = serve_http().port
    for path in [*PAGES, *STATIC]:
        status, headers, body = fetch(port, path, 'POST', **BROWSER)
        assert (status, headers['Allow']) == (405, 'GET, HEAD')
        assert headers['Content-Type'].startswith('text/html')
        assert 'only GET, HEAD is supported' in body


def test_who_is_not_admitted_gets_a_page_that_says_so(serve_http, tmp_path):
    (tmp_path / 'token').write_text('s3cret\n')
    port = serve_http(http__token_file=str(tmp_path / 'token')).port
    for path in PAGES:
        status, headers, body = fetch(port, path)
        assert (status, headers['WWW-Authenticate']) == (401, 'Bearer')
        assert '<h1>Unauthorized</h1>' in body
        check_safety(headers)
        # A browser asks for the token where it is told how to send it.
        _, headers, _ = fetch(port, path, **BROWSER)
        assert headers.get_all('WWW-Authenticate') == [
            'Bearer', 'Basic realm="scheduler-service", charset="UTF-8"',
        ]  # fmt: skip
        good = {'Authorization': 'Bearer s3cret'}
        assert fetch(port, path, **good)[0] == 200
    port = serve_http().port
    for path in PAGES:
        status, headers, body = fetch(port, path, Host='page.example')
        assert (status, '<h1>Forbidden</h1>' in body) == (403, True)
        check_safety(headers)


def test_rules_of_the_policy_count_for_pages(serve_http, tmp_path):
    (tmp_path / 'policy.yaml').write_text('"list_decisions": "role:nobody"')
    port = serve_http(
        oslo_policy__policy_file=str(tmp_path / 'policy.yaml')
    ).port
    status, _, body = fetch(port, '/decisions')
    assert (status, 'list_decisions' in body) == (403, True)


def test_what_is_not_there_is_answered_with_the_nearest(serve_http):
    port = serve_http().port
    status, headers, body = fetch(port, '/decision', **BROWSER)
    assert (status, '/decisions' in body) == (404, True)
    check_safety(headers)
    # A program gets what it got before.
    status, headers, _ = fetch(port, '/decision')
    assert headers['Content-Type'] == 'application/json'
    status, headers, _ = fetch(port, '/v1/nothing', **BROWSER)
    assert (status, headers['Content-Type']) == (404, 'application/json')


def test_a_wrong_parameter_is_named_and_shown_as_text(serve_http):
    port = serve_http().port
    for query, shown in (
        ('bogus=1', 'bogus: not a parameter'),
        ('bogus=', 'bogus: not a parameter'),
        ('since=x', 'since: '),
        ('%3Cb%3E%E2%80%AE%01=1', '&lt;b&gt;\\u202e\\x01: not a parameter'),
    ):
        status, headers, body = fetch(port, f'/decisions?{query}')
        assert (status, shown in body) == (400, True), body
        check_safety(headers)
    # A form sends each of its fields.
    assert fetch(port, '/decisions?outcome=&since=')[0] == 200


def test_a_daemon_may_serve_no_pages(serve_http):
    port = serve_http(http__pages=False).port
    for path in ['/', *PAGES, *STATIC]:
        status, headers, _ = fetch(port, path, **BROWSER)
        assert (status, headers['Content-Type']) == (404, 'application/json')
