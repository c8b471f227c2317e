"""Pods that are bound and not followed: they count from their bind on."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import kube
from tests.support.json_server import JsonHandler, JsonServer
from tests.support.waiting import wait_until

HOSTS = {
    'hosts': [
        {'host': name, 'vcpus': 8, 'memory_mb': 8192, 'local_gb': 10,
         'resources': {'CUSTOM_EXAMPLE_COM_FPGA': {'total': 1}}}
        for name in ('a', 'b')
    ],
}  # fmt: skip


class Api(JsonServer):
    """Stands in for an API server: binds pods, and lists those bound.

    :ivar pods: name -> pod
    :ivar refuses: whether nobody may list
    """

    def __init__(self) -> None:
        super().__init__(Handler)
        self.pods: dict[str, Any] = {}
        self.refuses = False
        self.lists = 0


class Handler(JsonHandler):
    server: Api

    def do_POST(self) -> None:
        asked = self.asked()
        name = asked['metadata']['name']
        self.server.pods[name] = new_pod(name, asked['target']['name'])
        self.say(201, {})

    def do_GET(self) -> None:
        assert 'spec.nodeName' in self.path
        self.server.lists += 1
        # One pod a page, so that there are several.
        names = sorted(self.server.pods)
        at = int(self.path.partition('continue=')[2] or 0)
        more = str(at + 1) if at + 1 < len(names) else ''
        self.say(403 if self.server.refuses else 200, {
            'metadata': {'resourceVersion': '5', 'continue': more},
            'items': [self.server.pods[name] for name in names[at : at + 1]],
        })  # fmt: skip


@pytest.fixture
def api() -> Iterator[Api]:
    server = Api()
    with server.running():
        yield server


def new_pod(name: str, node: str = '', **more: Any) -> dict[str, Any]:
    made = kube.pod(name, **more)
    made['metadata']['uid'] = name
    made['spec']['nodeName'] = node
    return made


@pytest.fixture
def ask(serve_http, api):
    """Serve, and give a function that calls a verb for a pod on a and b."""
    http = serve_http(
        inventory=HOSTS,
        extender__api_server=api.url,
        extender__count_interval=0.1,
    )

    def ask(verb: str, pod: Any) -> Any:
        asked = {'Pod': pod, 'NodeNames': ['a', 'b']}
        status, answer = http.send('POST', f'/extender/{verb}', asked)
        assert status == 200
        return answer

    ask.http = http
    return ask


def scores(ask: Any, pod: Any) -> dict[str, int]:
    return {one['Host']: one['Score'] for one in ask('prioritize', pod)}


def bind(ask: Any, name: str, node: str) -> str:
    asked = {'PodName': name, 'PodNamespace': 'default', 'PodUID': name,
             'Node': node}  # fmt: skip
    answer: str = ask.http.send('POST', '/extender/bind', asked)[1]['Error']
    return answer


def test_pod_counts_from_its_bind_until_it_is_listed_no_more(ask, api):
    api.pods['old'] = new_pod('old', 'b')
    seen = {'a': 10, 'b': 8}
    wait_until(lambda: scores(ask, new_pod('x')) == seen, 30)
    # Assumed on the one, and bound to the other.
    assert scores(ask, new_pod('first')) == {'a': 10, 'b': 9}
    assert bind(ask, 'first', 'b') == ''
    assert scores(ask, new_pod('x')) == {'a': 10, 'b': 7}
    lists = api.lists
    wait_until(lambda: api.lists >= lists + 4, 30)
    assert scores(ask, new_pod('x')) == {'a': 10, 'b': 7}
    api.pods.clear()
    wait_until(lambda: scores(ask, new_pod('x')) == {'a': 10, 'b': 9}, 30)


def test_bind_is_refused_where_another_took_what_is_asked_for(ask, api):
    wanting = {'extended': {'example.com/fpga': '1'}}
    wait_until(lambda: api.lists >= 2, 30)
    for name in ('first', 'second'):
        assert ask('filter', new_pod(name, **wanting))['NodeNames']
        ask('prioritize', new_pod(name, **wanting))
    assert bind(ask, 'first', 'a') == ''
    assert '0 free' in bind(ask, 'second', 'a')
    assert bind(ask, 'second', 'b') == ''
    assert ask('filter', new_pod('third', **wanting))['NodeNames'] == []


def test_nothing_is_guessed_while_pods_may_not_be_listed(ask, api):
    wait_until(lambda: api.lists, 30)
    api.refuses = True
    health = ask.http.service.daemon.scheduler.health
    text = wait_until(lambda: ' '.join(health.degraded), 30)
    assert 'pods of the cluster are not followed' in text
    assert '403' in text
    wanting = new_pod('p', extended={'example.com/fpga': '1'})
    assert ask('filter', wanting)['NodeNames'] == ['a', 'b']
    api.refuses = False
    wait_until(lambda: not health.degraded, 30)


def test_load_of_the_store_counts_too_when_pods_are_counted(serve_http, api):
    inventory: Any = copy.deepcopy(HOSTS)
    for host in inventory['hosts']:
        host.update(cpu_allocation_ratio=1.0, ram_allocation_ratio=1.0)
    inventory['hosts'][1]['memory_mb_used'] = 4096
    http = serve_http(
        inventory=inventory,
        extender__api_server=api.url,
        extender__count_interval=0.1,
    )
    asked = {
        'Pod': kube.pod('p', {'cpu': '1m', 'memory': '4Gi'}),
        'NodeNames': ['b', 'a'],
    }

    def differ() -> bool:
        _, answer = http.send('POST', '/extender/prioritize', asked)
        # Nodes that are alike would have 10 and 9, the first of them 10.
        scored = {node['Host']: node['Score'] for node in answer}
        return scored == {'a': 10, 'b': 8}

    wait_until(differ, 30)
