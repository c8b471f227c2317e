"""Pods that are bound through an API server."""

from __future__ import annotations

import json
import pathlib
import socket
import threading
from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service.http.binder import Binder
from tests.support import extenders
from tests.support.http_client import HttpClient


def test_pod_is_bound_once_when_asked_twice(serve_http, tmp_path):
    """A stand-in for an API server: there is no real one to be had."""
    bound: dict[str, str] = {}

    class Api(extenders.http.server.BaseHTTPRequestHandler):
        protocol_version = 'HTTP/1.1'

        def do_POST(self) -> None:
            size = int(self.headers['Content-Length'])
            asked = json.loads(self.rfile.read(size))
            name = asked['metadata']['name']
            if self.headers['Authorization'] != 'Bearer t':
                self._say(403, {'message': 'who are you'})
            elif name in bound:
                self._say(409, {'message': 'already bound'})
            else:
                bound[name] = asked['target']['name']
                self._say(201, {})

        def do_GET(self) -> None:
            name = self.path.rsplit('/', 1)[-1]
            spec = {'nodeName': bound[name]}
            self._say(200, {'metadata': {'uid': 'u'}, 'spec': spec})

        def _say(self, status: int, document: Any) -> None:
            text = json.dumps(document).encode()
            self.send_response(status)
            self.send_header('Content-Length', str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    server = extenders.http.server.ThreadingHTTPServer(('127.0.0.1', 0), Api)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    token = pathlib.Path(tmp_path / 'token')
    token.write_text('t')
    try:
        http = serve_http(
            extender__api_server=f'http://127.0.0.1:{server.server_port}',
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
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


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
        binder = Binder(url, None, None, 0.2)
        with pytest.raises(errors.ExtenderFailed, match='unreachable'):
            binder.bind('default', 'a', 'u', 'n')
