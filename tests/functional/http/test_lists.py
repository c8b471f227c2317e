"""Hosts, zones and daemons over HTTP, beside the commands that list them."""

from __future__ import annotations

import csv
import io

import pytest

from scheduler_service.cmd import manage
from scheduler_service.store.connection import Store
from scheduler_service.store.records import shadow
from scheduler_service.store.records.shadow import Count, Verdict
from tests.support.commands import printed_json
from tests.support.databases import ready_database
from tests.support.documents import CONTEXT, SMALL
from tests.support.http_client import HttpClient
from tests.support.servers import free_port
from tests.support.services import started
from tests.support.tcp_proxy import Mode, through_proxy
from tests.support.waiting import wait_until

HOSTILE = '=cmd|\u202e<b>\x07'


@pytest.fixture
def http(serve_http):
    """A daemon with a claim, a disabled host and odd names."""
    http = serve_http()
    for words in (
        ('host', 'disable', 'compute-3', '--reason', HOSTILE),
        ('aggregate', 'create', '@fast'),
        ('aggregate', 'add-host', '@fast', 'compute-2', 'compute-4'),
    ):
        command(http, *words)
    http.service.client.select_destinations(CONTEXT, {'flavor': SMALL})
    wait_until(lambda: '@fast' in str(http.send('GET', '/v1/hosts')[1]))
    return http


def command(http, *words):
    """Run a command on the daemon's database; return its exit status."""
    folder = http.service.store.engine.url.database
    path = f'{folder}.conf'
    url = http.service.conf.database.connection
    with open(path, 'w') as file:
        file.write(f'[database]\nconnection = {url}\n')
    return manage.main(['--config-file', path, *words])


@pytest.fixture
def printed(http, capsys):
    """Give a function that returns what a command prints as JSON."""

    def run(*words):
        capsys.readouterr()
        status = command(http, *words, '-f', 'json')
        told = capsys.readouterr()
        return printed_json((status, told.out, told.err))

    return run


SAME = [
    ('hosts', 'hosts', 'host list'),
    ('hosts?zone=north&state=up', 'hosts', 'host list --zone north'),
    ('hosts?aggregate=%40fast', 'hosts', 'host list --aggregate @fast'),
    ('hosts?status=disabled', 'hosts', 'host list --status disabled'),
    ('hosts?name=*-%5B12%5D', 'hosts', 'host list --name *-[12]'),
    ('hosts?limit=2', 'hosts', 'host list --limit 2'),
    ('hosts/compute-3', 'nodes', 'host show compute-3'),
    ('capacity', 'capacity', 'capacity'),
    ('capacity?zone=north', 'capacity', 'capacity --zone north'),
    ('capacity?flavor=vcpus%3D1,memory_mb%3D512&by=host', 'capacity',
     'capacity --flavor vcpus=1,memory_mb=512 --by host'),
    ('capacity?flavor=vcpus%3D1&zone=north', 'capacity',
     'capacity --flavor vcpus=1 --zone north'),
    ('daemons', 'daemons', 'daemon list'),
    ('decisions?user=u', 'decisions', 'decision list --user u'),
    ('rates', 'rates', 'rates'),
    ('rates?since=1h', 'rates', 'rates --since 1h'),
]  # fmt: skip


def test_a_resource_has_what_the_command_prints(http, printed):
    wait_until(lambda: printed('daemon', 'list'))
    wait_until(lambda: printed('decision', 'list'))
    wait_until(lambda: printed('rates'))
    for path, key, words in SAME:
        expected = printed(*words.split())
        status, told = http.send('GET', f'/v1/{path}')
        for row in (*expected, *told[key]) if key == 'daemons' else ():
            del row['last_sign']
        assert (status, told[key]) == (200, expected), path
        assert expected, path
    _, told = http.send('GET', '/v1/decisions?user=p')
    assert told['decisions'] == printed('decision', 'list', '--user', 'p')
    assert told['decisions'] == []


def test_the_report_of_a_shadow_is_what_the_command_prints(http, printed):
    found = {(Verdict.OTHER, 'RAMWeigher'): Count(2, 3.0, 2.0, 'req-1')}
    http.service.store.write(lambda writer: shadow.add(writer, found, None))
    told = http.send('GET', '/v1/shadow?since=2d')
    assert told == (200, printed('shadow', '--since', '2d'))
    assert told[1]['summary'].startswith('2 requests: ')
    assert http.send('GET', '/v1/shadow.csv')[1].splitlines()[1] == (
        'another,RAMWeigher,2,1.5,2,req-1'
    )
    page = http.send('GET', '/shadow')[1]
    assert 'href="/decisions/req-1"' in page
    assert http.send('GET', '/v1/shadow?since=x')[0] == 400


def test_csv_has_the_rows_and_no_formulas(http):
    status, text = http.send('GET', '/v1/hosts.csv')
    assert status == 200
    rows = list(csv.DictReader(io.StringIO(text)))
    _, told = http.send('GET', '/v1/hosts')
    assert [row['host'] for row in rows] == [
        row['host'] for row in told['hosts']
    ]
    assert list(rows[0]) == list(told['hosts'][0])
    assert rows[3]['aggregates'] == "'@fast"
    assert rows[2]['disabled_reason'] == "'=cmd|\\u202e<b>\\x07"
    for path in ('capacity.csv', 'daemons.csv', 'decisions.csv',
                 'rates.csv'):  # fmt: skip
        status, text = http.send('GET', f'/v1/{path}')
        assert (status, text.count('\n') > 0) == (200, True), path
    _, text = http.send('GET', '/v1/hosts.csv?name=none')
    assert text.splitlines() == [','.join(rows[0])]


def test_hosts_are_sorted_and_in_parts(http):
    def names(query):
        status, told = http.send('GET', f'/v1/hosts?{query}')
        assert status == 200
        return [row['host'] for row in told['hosts']], told['more']

    every, _ = names('')
    assert names('sort=-host') == (every[::-1], False)
    assert names('limit=2&offset=1') == (every[1:3], True)
    # The host with the claim; the others are in the order of their names.
    first, *rest = names('sort=-vcpus_used')[0]
    _, told = http.send('GET', f'/v1/hosts/{first}')
    assert len(told['claims']) == 1
    assert rest == [name for name in every if name != first]
    assert names('sort=-status')[0][0] == 'compute-3'
    zones = {row['host']: row['zone'] for row in
             http.send('GET', '/v1/hosts')[1]['hosts']}  # fmt: skip
    by_zone = names('sort=zone')[0]
    assert by_zone == sorted(every, key=lambda name: zones[name])


def test_names_that_nothing_has_are_told_with_the_nearest(http):
    for path, sentence in (
        ('hosts?zone=nroth', 'zone nroth: nothing matches; there are north, '
         'nova; is north meant?'),
        ('hosts?aggregate=fasd', '; is @fast meant?'),
        ('capacity?zone=nroth', '; is north meant?'),
        ('capacity?zone=nroth&flavor=vcpus%3D1', '; is north meant?'),
    ):  # fmt: skip
        status, told = http.send('GET', f'/v1/{path}')
        assert status == 200
        assert told['remarks'][0].endswith(sentence)
    status, told = http.send('GET', '/v1/hosts/compte-3')
    assert (status, told['error']['name']) == (404, 'HostNotFound')
    assert told['error']['message'].endswith('; is compute-3 meant?')


def test_parameters_that_cannot_be_read_are_named(http):
    for query, at in (
        ('hosts?zones=a', 'zones'),
        ('hosts?state=sideways', 'state'),
        ('hosts?limit=0', 'limit'),
        ('hosts?sort=aggregates', 'sort'),
        ('hosts?offset=-1', 'offset'),
        ('hosts?limit=' + '9' * 5000, 'limit'),
        ('hosts.csv?zone=', 'zone'),
        ('hosts/compute-1?zone=north', 'zone'),
        ('capacity?flavor=vcpus', 'flavor'),
        ('capacity?by=host', 'by'),
        ('daemons?name=a', 'name'),
        ('rates?since=soon', 'since'),
        ('rates?limit=1', 'limit'),
    ):
        status, told = http.send('GET', f'/v1/{query}')
        found = status, told['error']['facts'].get('at')
        assert found == (400, at), query
    flavor = 'vcpus%3D' + '9' * 5000
    assert http.send('GET', f'/v1/capacity?flavor={flavor}')[0] == 400


@pytest.mark.db
def test_hosts_and_zones_are_listed_while_the_database_is_away(postgresql):
    port = free_port()
    with through_proxy(ready_database(postgresql[1])) as (proxy, proxied):
        store = Store.connect(proxied)
        service = started(store, http__bind_port=port)
        http = HttpClient(service, port)
        proxy.become(Mode.REFUSE)
        try:
            assert len(http.send('GET', '/v1/hosts')[1]['hosts']) == 4
            assert http.send('GET', '/v1/capacity')[1]['capacity']
            for path in ('hosts/compute-1', 'daemons'):
                status, told = http.send('GET', f'/v1/{path}')
                name = told['error']['name']
                assert (status, name) == (503, 'StoreUnavailable')
        finally:
            proxy.become(Mode.FORWARD)
            http.close()
            service.stop()
            store.dispose()
