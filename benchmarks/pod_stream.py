"""Lists and watches of an API server, with pods that are placed all the time.

A stand-in for one, so that the load of following a cluster can be the same
each time: it serves what the daemon asks for, and nothing else. After a while
each pod that is placed has an older one deleted.
"""

from __future__ import annotations

import http.server
import json
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib import parse

from benchmarks import common, kube_caller
from benchmarks.kube_serving import HOSTS

_ALIVE = 1000
# How many times a second events are sent.
_TICKS = 20


def events(start: int, count: int, shapes: list[Any]) -> Iterator[bytes]:
    """Yield lines of a watch for some placements."""
    for number in range(start, start + count):
        yield _line('ADDED', number, shapes)
        if number >= _ALIVE:
            yield _line('DELETED', number - _ALIVE, shapes)


def _line(kind: str, number: int, shapes: list[Any]) -> bytes:
    pod = json.loads(shapes[number % len(shapes)].pod(number))
    pod['metadata']['resourceVersion'] = str(1000 + number)
    pod['metadata']['managedFields'] = [
        {'manager': 'kube-scheduler', 'operation': 'Update', 'apiVersion':
         'v1', 'fieldsType': 'FieldsV1', 'fieldsV1': {
             f'f:{at}': {'.': {}} for at in range(30)}}]  # fmt: skip
    pod['spec']['nodeName'] = common.host_name(number % HOSTS)
    event = {'type': kind, 'object': pod}
    return json.dumps(event, separators=(',', ':')).encode() + b'\n'


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers lists at once, and watches for as long as they last."""

    protocol_version = 'HTTP/1.1'
    rate = 0

    def do_GET(self) -> None:
        """Serve nodes and pods."""
        url = parse.urlsplit(self.path)
        asked = dict(parse.parse_qsl(url.query))
        if 'watch' not in asked:
            self._list()
        else:
            self._watch(
                int(asked['resourceVersion']),
                float(asked.get('timeoutSeconds', 30)),
                self.rate if url.path.endswith('/pods') else 0,
            )

    def _list(self) -> None:
        body = json.dumps(
            {'metadata': {'resourceVersion': '1000'}, 'items': []}
        ).encode()
        self.send_response(200)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self, version: int, seconds: float, rate: int) -> None:
        self.send_response(200)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Transfer-Encoding', 'chunked')
        self.end_headers()
        shapes = kube_caller.shapes()
        start = begin = version - 1000
        first = time.monotonic()
        while (passed := time.monotonic() - first) < seconds:
            due = begin + int(passed * rate)
            for line in events(start, due - start, shapes):
                self.wfile.write(b'%x\r\n%s\r\n' % (len(line), line))
            start = max(start, due)
            time.sleep(1 / _TICKS)
        self.wfile.write(b'0\r\n\r\n')

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


class Server(http.server.ThreadingHTTPServer):
    """Serves each list or watch on a thread of its own."""

    daemon_threads = True

    def handle_error(self, *args: Any) -> None:
        """A daemon that ended is none of our business."""


def main() -> None:
    """Serve on loopback; arguments: port, placements a second."""
    Handler.rate = int(sys.argv[2])
    address = '127.0.0.1', int(sys.argv[1])
    server = Server(address, Handler)
    print('Ready:', flush=True)
    server.serve_forever()


if __name__ == '__main__':
    main()
