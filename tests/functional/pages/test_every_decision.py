"""Each page with each kind of decision, and each parameter with odd values.

The daemon is a process: one page runs a command with the daemon's files.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import re
from collections.abc import Iterator
from typing import Any
from urllib import parse

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.http.v1 import (
    CRITERIA,
    HOST_CRITERIA,
    SHADOW_CRITERIA,
)
from scheduler_service.pages import picture, trial, words
from scheduler_service.pages.adapter import _PAGES
from scheduler_service.pages.why import OF_HOSTS
from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from tests.support import engines, kube, nova_wire, processes
from tests.support.compute import CONTEXT as COMPUTE_CONTEXT
from tests.support.databases import ready_database
from tests.support.documents import CONTEXT, SMALL
from tests.support.http_client import HttpClient
from tests.support.servers import free_port
from tests.support.waiting import LIMIT_S, wait_until

DOTS = ['.', '..']
LARGE = {'request_id': 'req-large', 'scheduler_hints': {'a': 'y' * 70_000}}
REQUESTS: list[dict[str, Any]] = [
    {'request_id': 'req-chosen'},
    {'request_id': 'req-several', 'num_instances': 2},
    {'request_id': 'req-refused', 'flavor': {**SMALL, 'memory_mb': 10**7}},
    {'request_id': 'req-zone-less', 'availability_zone': 'nowhere'},
    {'request_id': 'req-gone'},
    LARGE,
    *({'request_id': name} for name in DOTS),
]
NODES = ['compute-1', 'compute-2']
# Request id -> kind and outcome of its last decision.
DECISIONS = {
    'req-chosen': ('select_destinations', 'chosen'),
    'req-several': ('select_destinations', 'chosen'),
    'req-refused': ('select_destinations', 'NoValidHost'),
    'req-zone-less': ('select_destinations', 'NoValidHost'),
    'req-gone': ('select_destinations', 'chosen'),
    'req-large': ('select_destinations', 'chosen'),
    '..': ('select_destinations', 'chosen'),
    '.': ('select_destinations', 'chosen'),
    'req-batch': ('select_destinations', 'chosen'),
    'zone-chosen': ('schedule_zone', 'chosen'),
    'zone-refused': ('schedule_zone', 'NoValidPoolFound'),
    'zone-batch': ('schedule_zone', 'chosen'),
    'pod-passed': ('pod_filter', 'passed'),
    'pod-refused': ('pod_filter', 'NoValidHost'),
    'pod-ordered': ('pod_prioritize', 'ordered'),
    COMPUTE_CONTEXT['request_id']: ('external', 'ordered'),
}
# Page -> the parameters of its forms and links.
PARAMETERS: dict[str, tuple[str, ...]] = {
    '/': (),
    '/decisions': tuple(CRITERIA),
    '/decisions/{request_id}': ('host',),
    '/why/{request_id}': ('host',),
    '/history/{name}': (),
    '/drain/{name}': (),
    '/try': trial._ALL,
    '/cloud': ('by', 'resource', 'flavor', 'block'),
    '/cloud.png': ('by', 'resource', 'flavor', 'block'),
    '/cloud/{block}': (),
    '/hosts': tuple(HOST_CRITERIA),
    '/hosts/{name}': (),
    '/shadow': tuple(SHADOW_CRITERIA),
    '/daemons': ('sort', 'offset'),
    '/pools': ('sort', 'offset'),
    '/dns-zones': ('sort', 'offset'),
}
# Percent-encoded, or bytes as they are.
ODD = [
    '', '%00', '%', '%ff', '\xff', '%ED%A0%80', '%0d%0aA:%20b', '-1', '0',
    '1e309', '9' * 400, '%2e%2e', '..', '-', '--help', '[', '%7B%7D', '*',
    '%F0%9F%98%80', '%E2%80%AE', '1' * 5000, '%3Cb%3E', '&a[a]=1', ';', '+',
]  # fmt: skip


def _decide(store: Store) -> None:
    """Decide on hosts and zones, one by one and together."""
    engine = engines.start_engine(
        store, pool_scheduler__scheduler_filters=['attribute', 'random']
    )
    select, zone = engines.select, engines.zone
    for request in REQUESTS:
        with contextlib.suppress(errors.NoValidHost):
            select((), **request).run(engine)
    zone('a.example.', request_id='zone-chosen').run(engine)
    wrong = {'pool_level': 'none'}
    zone('b.example.', request_id='zone-refused', attributes=wrong).run(engine)
    entries = [
        select((), request_id='req-batch').args[0],
        zone('c.example.', request_id='zone-batch').args[0],
    ]
    engines.Message('schedule_many', (entries, engines._CALLER)).run(engine)
    engine.stop()


def _forget(store: Store, request_id: str) -> None:
    """Delete what the history has, as if it were older than is kept."""
    with store.engine.begin() as conn:
        of_request = schema.decisions.c.request_id == request_id
        where = sa.select(schema.decisions.c.run, schema.decisions.c.block)
        run, block = conn.execute(where.where(of_request)).one()
        assert run is not None
        # No block has such a number.
        changed = sa.update(schema.decisions).values(block=block + 10**6)
        conn.execute(changed.where(of_request))


@pytest.fixture(scope='module')
def process(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[processes.Process, int]]:
    folder = tmp_path_factory.mktemp('decisions')
    url = ready_database(f'sqlite:///{folder}/')
    store = Store.connect(url)
    _decide(store)
    _forget(store, 'req-gone')
    store.dispose()
    port = free_port()
    config = folder / 'a.conf'
    config.write_text(
        f'[DEFAULT]\ntransport_url = inproc://\n'
        f'[database]\nconnection = {url}\n[http]\nbind_port = {port}\n'
        '[compute]\nexternal_scheduler = true\n'
    )
    daemon = processes.launch(config)
    daemon.wait_for('Ready:')
    _ask(port)
    yield daemon, port
    daemon.remove()
    assert daemon.count('Traceback') == 0


def _ask(port: int) -> None:
    """Have the daemon decide on pods, and on hosts that are sent."""
    client = HttpClient(None, port)  # type: ignore[arg-type]
    for uid, nodes, verb in (
        ('pod-passed', NODES, 'filter'),
        ('pod-refused', ['unknown'], 'filter'),
        ('pod-ordered', NODES, 'prioritize'),
    ):
        pod = kube.pod(uid)
        pod['metadata']['uid'] = uid
        sent = {'Pod': pod, 'Nodes': None, 'NodeNames': nodes}
        assert client.send('POST', f'/extender/{verb}', sent)[0] == 200
    sent = {
        'spec': nova_wire.spec(), 'context': COMPUTE_CONTEXT,
        'rebuild': False, 'resize': False, 'live': False, 'vmware': False,
        'hosts': [{'host': host, 'hypervisor_hostname': host}
                  for host in NODES],
        'weights': {},
    }  # fmt: skip
    path = '/scheduler/nova/external'
    assert client.send('POST', path, sent)[0] == 200
    wait_until(
        lambda: (
            [
                id_
                for id_ in DECISIONS
                if client.send('GET', f'/v1/decisions/{segment(id_)}')[0]
                != 200
            ]
            == []
        )
    )
    client.close()


def segment(name: str) -> str:
    return parse.quote(name, safe='') + '=' * (name in DOTS)


def get(port: int, target: str, **headers: str) -> Any:
    """Send a request line as it is; return status, headers and body."""
    conn = http.client.HTTPConnection('127.0.0.1', port, timeout=LIMIT_S)
    conn._validate_path = lambda url: None  # type: ignore[attr-defined]
    conn._encode_request = (  # type: ignore[attr-defined]
        lambda request: request.encode('latin-1')
    )
    try:
        conn.request('GET', target, headers=headers)
        reply = conn.getresponse()
        return reply.status, reply.headers, reply.read()
    finally:
        conn.close()


def test_the_table_has_every_page() -> None:
    assert {*PARAMETERS} == {*_PAGES, '/why/{request_id}', *OF_HOSTS}
    assert set(picture.PLACES)


def test_each_page_shows_each_kind_of_decision(process: Any) -> None:
    _, port = process
    for request_id, (kind, outcome) in DECISIONS.items():
        name, query = segment(request_id), parse.quote(request_id)
        for path in (
            f'/decisions/{name}',
            f'/decisions/{name}?host=compute-1',
            f'/decisions?request={query}',
        ):
            status, _, body = get(port, path)
            assert status == 200, (path, body)
            assert words.kind(kind) in body.decode(), path
            verdict = words.outcome({'outcome': outcome})
            assert verdict in body.decode(), path


# Each runs a command, so there are fewer.
@pytest.mark.parametrize(
    ('request_id', 'host', 'told'),
    [
        ('req-refused', '', 'What would let hosts pass'),
        ('..', 'compute-1', 'What it asks, and what is free'),
        ('req-gone', '', 'its request is not recorded any more'),
        ('zone-chosen', 'compute-1', 'it keeps no request for hosts'),
        ('zone-refused', '', 'Pools left after each filter'),
        ('pod-refused', '', 'Filters that reject hosts'),
        ('pod-ordered', '', 'The best of 2 hosts'),
        (COMPUTE_CONTEXT['request_id'], '', 'it keeps no request for hosts'),
    ],
)
def test_the_command_answers_for_each_kind_of_decision(
    process: Any, request_id: str, host: str, told: str
) -> None:
    _, port = process
    path = f'/why/{segment(request_id)}{f"?host={host}" * bool(host)}'
    status, _, body = get(port, path)
    assert status == 200, body
    kind, outcome = DECISIONS[request_id]
    verdict = words.outcome({'outcome': outcome})
    for text in (words.kind(kind), verdict, told):
        assert text in body.decode(), text
    assert 'No single change' not in body.decode()


@pytest.mark.parametrize('path', PARAMETERS)
def test_odd_values_of_parameters_and_names_are_answered(
    process: Any, path: str
) -> None:
    daemon, port = process
    page, brace, _ = path.partition('{')
    # Most of these would run a command each.
    runs = path in ('/why/{request_id}', *OF_HOSTS)
    odd = ['%00', '%ED%A0%80%00'] if runs else ODD
    names = (*PARAMETERS[path], 'bogus', '\xff', '%ff')
    targets = [
        f'{page}{"req-chosen" if brace else ""}?{name}={value}'
        for name, value in itertools.product(names, odd)
    ]
    targets += [f'{page}{value}' for value in odd if brace]
    for target in targets:
        status, _, body = get(port, target)
        assert status < 500, (target[:200], body[:500])
    assert daemon.count('Traceback') == 0


def test_links_to_names_of_dots_lead_to_them(serve_http: Any) -> None:
    """A browser drops such a segment; so does urljoin."""
    hosts = [{'host': name, 'vcpus': 8, 'memory_mb': 8192, 'local_gb': 9}
             for name in DOTS]  # fmt: skip
    served = serve_http(inventory={'hosts': hosts})
    for name in DOTS:
        served.service.client.select_destinations(
            CONTEXT, {'flavor': SMALL, 'request_id': name}
        )
    scheduler = served.service.daemon.scheduler
    wait_until(lambda: len(scheduler.decisions(9)) == len(DOTS))
    linked = set()
    for page in ('/hosts', '/decisions', '/hosts/..=', '/decisions/.='):
        _, _, body = get(served.port, page)
        for link in re.findall(r' (?:href|formaction)="([^"]+)"', str(body)):
            target = parse.urljoin(f'http://a{page}', link)[8:]
            assert target != '/' or link == '/', (page, link)
            linked.add(target)
    for kind, name in itertools.product(('hosts', 'decisions'), DOTS):
        assert f'/{kind}/{name}=' in linked
        status, _, body = get(served.port, f'/{kind}/{name}=')
        assert (status, f' {name}</h1>' in body.decode()) == (200, True)
        assert get(served.port, f'/v1/{kind}/{name}=')[0] == 200
