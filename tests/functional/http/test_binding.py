"""Pods that are bound through an API server."""

import copy
import pathlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service.kube.api import Address, ApiServer
from tests.support import kube
from tests.support.http_client import HttpClient
from tests.support.json_server import JsonHandler, JsonServer
from tests.support.waiting import LIMIT_S, wait_until


def test_pod_is_bound_once_when_asked_twice(serve_http, tmp_path):
    """A stand-in for an API server: there is no real one to be had."""
    bound: dict[str, str] = {}

    class Api(JsonHandler):
        def do_POST(self) -> None:
            asked = self.asked()
            name = asked['metadata']['name']
            if self.headers['Authorization'] != 'Bearer t':
                self.say(403, {'message': 'who are you'})
            elif name in bound:
                self.say(409, {'message': 'already bound'})
            else:
                bound[name] = asked['target']['name']
                self.say(201, {})

        def do_GET(self) -> None:
            name = self.path.rsplit('/', 1)[-1]
            spec = {'nodeName': bound[name]}
            self.say(200, {'metadata': {'uid': 'u'}, 'spec': spec})

    server = JsonServer(Api)
    token = pathlib.Path(tmp_path / 'token')
    token.write_text('t')
    with server.running():
        http = serve_http(
            extender__api_server=server.url,
            extender__count_interval=0.0,
            extender__api_token_file=str(token),
        )

        def bind(node: str) -> str:
            asked = {'PodName': 'a', 'PodNamespace': 'default',
                     'PodUID': 'u', 'Node': node}  # fmt: skip
            status, answer = http.send('POST', '/extender/bind', asked)
            assert status == 200
            return answer['Error']

        assert bind('n1') == ''
        assert bind('n1') == ''
        assert 'already bound' in bind('n2')
        token.write_text('wrong')
        assert 'who are you' in bind('n1')
        _, text = http.send('GET', '/metrics')
        for line in (
            'calls_total{verb="bind"} 4.0',
            'errors_total{verb="bind"} 2.0',
            'nodes_total{direction="returned",verb="bind"} 2.0',
        ):
            assert f'scheduler_service_extender_verb_{line}' in text, text


def test_others_are_served_while_the_api_server_hangs(serve_http):
    with socket.create_server(('127.0.0.1', 0)) as hanging:
        port = hanging.getsockname()[1]
        http = serve_http(
            extender__api_server=f'http://127.0.0.1:{port}',
            extender__count_interval=0.0,
            extender__api_timeout=60.0,
            http__threads=2,
        )
        answers: list[str] = []

        def bind(number: int) -> None:
            caller = HttpClient(http.service, http.port)
            asked = {'PodName': f'p{number}', 'PodNamespace': 'default',
                     'PodUID': 'u', 'Node': 'n'}  # fmt: skip
            status, answer = caller.send('POST', '/extender/bind', asked)
            caller.close()
            assert status == 200
            answers.append(answer['Error'])

        # Twice as many as there are threads for binds.
        binds = [
            threading.Thread(target=bind, args=(number,))
            for number in range(4)
        ]
        for one in binds:
            one.start()
        # One is waiting for the API server.
        hanging.settimeout(LIMIT_S)
        with hanging.accept()[0]:
            asked = {'Pod': {}, 'NodeNames': ['compute-1']}
            status, answer = http.send('POST', '/extender/filter', asked)
            assert (status, answer['NodeNames']) == (200, ['compute-1'])
            assert http.send('GET', '/v1/decisions')[0] == 200
            assert http.send('GET', '/readyz')[0] == 200
            assert not answers
    # Nobody listens any more: all of them end.
    for one in binds:
        one.join()
    assert len(answers) == 4
    assert all('unreachable' in text for text in answers)


def test_a_bind_is_given_up_when_the_api_server_hangs():
    with socket.create_server(('127.0.0.1', 0)) as hanging:
        url = f'http://127.0.0.1:{hanging.getsockname()[1]}'
        api = ApiServer(Address(url=url))
        with pytest.raises(errors.ExtenderFailed, match='unreachable'):
            api.bind('default', 'a', 'u', 'n', 0.2)


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
    :ivar asked: what each pod that is bound asks for
    :ivar refuses: whether nobody may list
    """

    def __init__(self) -> None:
        super().__init__(Handler)
        self.pods: dict[str, Any] = {}
        self.asked: dict[str, Any] = {}
        self.refuses = False
        self.lists = 0


class Handler(JsonHandler):
    server: Api

    def do_POST(self) -> None:
        asked = self.asked()
        name, node = asked['metadata']['name'], asked['target']['name']
        bound = new_pod(name, node, **self.server.asked)
        self.server.pods = {**self.server.pods, name: bound}
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
    wait_until(lambda: scores(ask, new_pod('x')) == seen)
    # Assumed on the one, and bound to the other.
    assert scores(ask, new_pod('first')) == {'a': 10, 'b': 9}
    assert bind(ask, 'first', 'b') == ''
    assert scores(ask, new_pod('x')) == {'a': 10, 'b': 7}
    lists = api.lists
    wait_until(lambda: api.lists >= lists + 4)
    assert scores(ask, new_pod('x')) == {'a': 10, 'b': 7}
    api.pods.clear()
    wait_until(lambda: scores(ask, new_pod('x')) == {'a': 10, 'b': 9})


def test_bind_is_refused_where_another_took_what_is_asked_for(ask, api):
    wanting = api.asked = {'extended': {'example.com/fpga': '1'}}
    many = new_pod('many', extended={'example.com/fpga': '9'})
    # Before the lists are read it is not known how many there are.
    wait_until(lambda: ask('filter', many)['NodeNames'] == [])
    for name in ('first', 'second'):
        assert ask('filter', new_pod(name, **wanting))['NodeNames']
        ask('prioritize', new_pod(name, **wanting))
    assert bind(ask, 'first', 'a') == ''
    assert '0 free' in bind(ask, 'second', 'a')
    assert bind(ask, 'second', 'b') == ''
    assert ask('filter', new_pod('third', **wanting))['NodeNames'] == []


def test_nothing_is_guessed_while_pods_may_not_be_listed(ask, api):
    wait_until(lambda: api.lists)
    api.refuses = True
    health = ask.http.service.daemon.scheduler.health
    text = wait_until(lambda: ' '.join(health.degraded))
    assert 'pods of the cluster are not followed' in text
    assert '403' in text
    wanting = new_pod('p', extended={'example.com/fpga': '1'})
    assert ask('filter', wanting)['NodeNames'] == ['a', 'b']
    api.refuses = False
    wait_until(lambda: not health.degraded)


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

    wait_until(differ)
