"""An extender that does nothing, on ``http.server``: what Python costs alone.

It parses each call and writes each reply with ``json``, lets every node pass
and scores all of them 0. Like any server that is fit for a kube-scheduler it
keeps connections, and writes a reply at once.
"""

from __future__ import annotations

import http.server
import json
import ssl
import sys
from typing import Any


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers filter and prioritize."""

    protocol_version = 'HTTP/1.1'
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_POST(self) -> None:
        """Pass all nodes, or score each of them 0."""
        size = int(self.headers['Content-Length'])
        reply = _reply(self.path, json.loads(self.rfile.read(size)))
        body = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


def _reply(path: str, asked: Any) -> Any:
    if path.endswith('/filter'):
        return {'Nodes': asked['Nodes'], 'NodeNames': asked['NodeNames'],
                'FailedNodes': {}, 'Error': ''}  # fmt: skip
    names = asked['NodeNames']
    if names is None:
        names = [one['metadata']['name'] for one in asked['Nodes']['items']]
    return [{'Host': name, 'Score': 0} for name in names]


class Server(http.server.ThreadingHTTPServer):
    """Serves each connection on a thread of its own."""

    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    """Serve on loopback; arguments: port, certificate and key for TLS."""
    server = Server(('127.0.0.1', int(sys.argv[1])), Handler)
    if len(sys.argv) > 2:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(sys.argv[2], sys.argv[3])
        server.socket = context.wrap_socket(server.socket, server_side=True)
    print('Ready:', flush=True)
    server.serve_forever()


if __name__ == '__main__':
    main()
