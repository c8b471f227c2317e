"""Pods that are bound through an API server."""

from __future__ import annotations

import json
import pathlib
import threading
from typing import Any

from tests.support import extenders


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
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
