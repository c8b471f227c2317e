"""Pods that are bound through an API server."""

from __future__ import annotations

import pathlib
import socket
import threading

import pytest

from scheduler_service import errors
from scheduler_service.kube.api import TokenClient
from scheduler_service.kube.binder import Binder
from tests.support.http_client import HttpClient
from tests.support.json_server import JsonHandler, JsonServer


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


def test_nodes_are_filtered_while_the_api_server_hangs(serve_http):
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
        hanging.settimeout(20)
        with hanging.accept()[0]:
            asked = {'Pod': {}, 'NodeNames': ['compute-1']}
            status, answer = http.send('POST', '/extender/filter', asked)
            assert (status, answer['NodeNames']) == (200, ['compute-1'])
            assert not answers
    # Nobody listens any more: all of them end.
    for one in binds:
        one.join()
    assert len(answers) == 4
    assert all('unreachable' in text for text in answers)


def test_a_bind_is_given_up_when_the_api_server_hangs():
    with socket.create_server(('127.0.0.1', 0)) as hanging:
        url = f'http://127.0.0.1:{hanging.getsockname()[1]}'
        binder = Binder(TokenClient(url, None, None), 0.2)
        with pytest.raises(errors.ExtenderFailed, match='unreachable'):
            binder.bind('default', 'a', 'u', 'n')
