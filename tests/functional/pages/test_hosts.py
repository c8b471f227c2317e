"""Pages about hosts, and the first page, as a daemon serves them."""

from __future__ import annotations

import contextlib
import re
from urllib import parse

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler_service import errors
from scheduler_service.store.connection import Store
from tests.support.databases import ready_database
from tests.support.documents import CONTEXT, SMALL
from tests.support.engines import store_all
from tests.support.http_client import HttpClient
from tests.support.servers import free_port
from tests.support.services import started
from tests.support.tcp_proxy import Mode, through_proxy

HOSTILE = '<script>alert(1)</script>"\'=\u202e{{ 1 }}'
SHOWN = '&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;=\\u202e{{ 1 }}'
INVENTORY = {
    'hosts': [
        {'host': 'compute-1', 'vcpus': 4, 'memory_mb': 4096, 'local_gb': 50},
        {'host': 'compute-2', 'vcpus': 4, 'memory_mb': 4096, 'local_gb': 50,
         'state': 'down', 'status': 'disabled', 'disabled_reason': HOSTILE},
        {'host': HOSTILE, 'vcpus': 2, 'memory_mb': 1024, 'local_gb': 50},
    ],
    'aggregates': [
        {'id': 1, 'name': HOSTILE, 'hosts': [HOSTILE],
         'metadata': {'availability_zone': 'no|rth'}},
    ],
}  # fmt: skip


@pytest.fixture
def http(serve_http):
    """A daemon that chose a host and refused a request."""
    http = serve_http(inventory=INVENTORY)
    flavor = {**SMALL, 'name': HOSTILE}
    for asked in (flavor, flavor, {'vcpus': 999}):
        with contextlib.suppress(errors.NoValidHost):
            http.service.client.select_destinations(
                CONTEXT, {'flavor': asked, 'force_hosts': ['compute-1']}
            )
    store_all(http.service.daemon.scheduler)
    return http


def page(http, path, code=200):
    status, body = http.send('GET', path, Accept='text/html')
    assert status == code, body
    assert '<script>alert' not in body
    assert not re.search(r'style=| on\w+=', body)
    return body


def test_a_click_on_the_cloud_leads_to_the_host(http):
    body = page(http, '/cloud')
    links = dict(re.findall(r'href="(/cloud/[^"]+)"[^>]*><img src="([^"]+)"',
                            body))  # fmt: skip
    assert sorted(links) == ['/cloud/zone%3Ano%7Crth', '/cloud/zone%3Anova']
    for image in links.values():
        image = image.replace('&amp;', '&')
        http._conn.request('GET', image)
        answer = http._conn.getresponse()
        assert answer.headers['Content-Type'] == 'image/png'
        assert answer.read().startswith(b'\x89PNG')
    for link, point, host in (
        ('/cloud/zone%3Anova', '3,3', 'compute-1'),
        ('/cloud/zone%3Anova', '14,3', 'compute-2'),
        ('/cloud/zone%3Ano%7Crth', '0,0', HOSTILE),
    ):
        http._conn.request('GET', f'{link}?{point}')
        answer = http._conn.getresponse()
        answer.read()
        assert answer.status == 302
        path = answer.headers['Location']
        assert path == f'/hosts/{parse.quote(host, safe="")}'
        assert '<h1>Host ' in page(http, path)
    told = http.send('GET', '/cloud/zone%3Anova?14,3,name')[1]
    assert told == 'compute-2: down, disabled, 0 to 10 %'


def test_what_the_cloud_does_not_have_is_named(http):
    for path, code, shown in (
        ('/cloud?by=colour', 400, 'by: expected one of'),
        ('/cloud?bye=zone', 400, 'bye: not a parameter'),
        ('/cloud?resource=VCPV', 404, 'is VCPU meant?'),
        ('/cloud.png?block=nvoa', 404, 'is nova meant?'),
        ('/cloud/zone:nvoa?1,1', 404, 'is nova meant?'),
        ('/cloud/zone:nova?700,1', 404, 'no host at this point'),
        ('/cloud/zone:nova?1,-1', 400, 'expected X,Y'),
        ('/cloud/zone:nova', 400, 'expected X,Y'),
        ('/cloud/colour:nova?1,1', 404, 'there are aggregate, cell, zone'),
        ('/hosts?zone=nvoa', 200, 'is nova meant?'),
        ('/hosts?zone=&state=up', 200, 'compute-1'),
        ('/hosts/compte-1', 404, 'is compute-1 meant?'),
        ('/cloud?flavor=cpus%3D1', 400, 'cpus: neither a size'),
        ('/cloud?flavor=vcpus%3D-1', 400, 'flavor'),
        ('/?a=1', 400, 'a: not a parameter'),
        ('/daemons?a=1', 400, 'a: not a parameter'),
    ):
        assert shown in page(http, path, code), path


def test_a_host_is_shown_with_all_about_it(http):
    body = page(http, '/hosts/compute-1')
    _, told = http.send('GET', '/v1/hosts/compute-1')
    assert [row['left'] for row in told['resources']] == [
        row['capacity'] - row['used'] for row in told['resources']
    ]
    assert len(told['claims']) == len(told['instances']) == 2
    for claim in told['claims']:
        assert body.count(claim['uuid']) == 2
        assert claim['request_id'] in body
    _, told = http.send('GET', '/v1/decisions?outcome=NoValidHost')
    (refused,) = told['decisions']
    link = f'/decisions/{refused["request_id"]}?host=compute-1'
    assert f'{refused["filter"]} left no host; <a href="{link}">' in body
    assert '>rejects it<' in page(http, link)
    (link,) = re.findall('/decisions[?]host=compute-1', body)
    assert page(http, link).count('data-label="Outcome">chosen') == 2
    assert 'zone <a href="/hosts?zone=nova">nova</a>' in body
    assert '<span class="good">up</span>' in body
    body = page(http, '/hosts/compute-2')
    assert '<span class="bad">down</span>' in body
    assert f'<span class="bad">disabled</span>: {SHOWN}' in body
    body = page(http, f'/hosts/{parse.quote(HOSTILE, safe="")}')
    assert f'<h1>Host {SHOWN}</h1>' in body
    assert f'Aggregates: {SHOWN}' in body
    assert SHOWN in page(http, '/hosts/compute-2')
    assert SHOWN in page(http, '/hosts')


def test_the_first_page_says_what_was_refused_and_what_lasts(http):
    body = page(http, '/')
    assert '2 of <a href="/hosts">3 hosts</a> are up' in body
    assert '<a href="/hosts?status=disabled">1</a> disabled' in body
    assert 'All is well' in body
    since = re.search(r'since ([-\d]+ [\d:]+) UTC \(\d+ s\)', body)
    _, told = http.send('GET', '/v1/daemons')
    # Not for longer than there is a daemon.
    assert told['daemons'][0]['started'].replace('T', ' ').startswith(since[1])
    _, told = http.send('GET', '/v1/decisions?outcome=refused')
    assert f'filter={told["decisions"][0]["filter"]}"' in body
    assert 'on host <a href="/hosts/compute-1">' in body
    assert '<a href="/dns-zones">0 DNS zones</a>' in body
    for path in ('/daemons', '/pools', '/dns-zones', '/shadow'):
        page(http, path)


def test_what_fits_is_shown_for_flavors_of_requests_and_for_ones_own(http):
    body = page(http, '/cloud')
    assert f'{SHOWN}</a><br><span class="quiet">1 vCPUs, 0.5 GB' in body
    sizes = 'vcpus%3D1,memory_mb%3D512,root_gb%3D1'
    _, told = http.send('GET', f'/v1/capacity?flavor={sizes}')
    cells = [f'class="number">{row["instances"]} <span'
             for row in told['capacity']]  # fmt: skip
    assert all(cell in re.sub(r'\s+', ' ', body) for cell in cells), cells
    for flavor, name in (
        (sizes, '1 vCPUs, 0.5 GB memory, 1 GB disk'),
        (parse.quote(HOSTILE, safe=''), SHOWN),
    ):
        shown = re.sub(r'\s+', ' ', page(http, f'/cloud?flavor={flavor}'))
        for row in told['capacity']:
            end = f', {row["instances"]} times; ' if row['instances'] else '<'
            assert f'{name} fits on {row["hosts"]} hosts{end}' in shown


def test_lists_are_in_the_order_of_a_heading_and_leave_out_what_is_empty(
    http,
):
    body = page(http, '/hosts?zone=nova')
    assert '>Node<' not in body
    link = re.search(r'href="([?][^"]*sort=-vcpus_used[^"]*)"', body)[1]
    shown = page(http, '/hosts' + link.replace('&amp;', '&'))
    assert 'aria-sort="descending"' in shown
    assert shown.index('"/hosts/compute-1"') < shown.index('/hosts/compute-2')
    assert 'zone=nova' in link
    body = page(http, '/hosts?zone=nova&limit=1')
    after = re.search(r'href="([?][^"]+)">After<', body)[1]
    body = page(http, '/hosts' + after.replace('&amp;', '&'))
    assert ('compute-2' in body, 'compute-1' in body) == (True, False)
    assert '>Before<' in body
    assert 'is name meant?' in page(http, '/daemons?sort=nane', 404)
    assert '>Other database<' not in page(http, '/daemons?sort=-name')


NOISE = st.text(st.characters(codec='utf-8'), max_size=30)
PATHS = ['/', '/cloud', '/cloud.png', '/cloud/{}', '/hosts', '/hosts/{}',
         '/daemons', '/pools', '/dns-zones', '/shadow']  # fmt: skip
NAMES = st.sampled_from(
    [
        'by',
        'resource',
        'block',
        'zone',
        'name',
        'limit',
        'flavor',
        'state',
        'since',
        'sort',
        'offset',
    ]
)


def test_no_question_is_too_odd_to_be_answered(http):
    @settings(
        max_examples=100, deadline=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.sampled_from(PATHS), NOISE, st.dictionaries(NAMES, NOISE))
    def ask(path, name, query):
        path = path.format(parse.quote(name, safe=''))
        status, _ = http.send('GET', f'{path}?{parse.urlencode(query)}')
        assert status in (200, 400, 404)

    ask()


@pytest.mark.db
def test_the_snapshot_is_shown_while_the_database_is_away(postgresql):
    port = free_port()
    url = ready_database(postgresql[1], INVENTORY)
    with through_proxy(url) as (proxy, proxied):
        store = Store.connect(proxied)
        service = started(store, http__bind_port=port)
        http = HttpClient(service, port)
        proxy.become(Mode.REFUSE)
        try:
            missing = 'Only what the daemon holds in memory is shown'
            assert missing in page(http, '/hosts/compute-1')
            assert 'The rest is missing' in page(http, '/')
            assert 'The flavors are missing' in page(http, '/cloud')
            for path in ('/cloud', '/hosts'):
                assert 'compute-1' in page(http, path) or path == '/cloud'
            assert page(http, '/daemons', 503)
            assert page(http, '/hosts/compute-0', 503)
            proxy.become(Mode.FORWARD)
            for path in ('/hosts/compute-1', '/', '/cloud'):
                assert 'missing' not in page(http, path)
            assert page(http, '/daemons')
        finally:
            proxy.become(Mode.FORWARD)
            http.close()
            service.stop()
            store.dispose()
