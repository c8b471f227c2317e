"""A client of one daemon over HTTP."""

from __future__ import annotations

import http.client
import json
from typing import Any

from tests.support.services import Service
from tests.support.waiting import LIMIT_S


class HttpClient:
    """Sends requests to one daemon, on a connection that is kept."""

    def __init__(self, service: Service, port: int, **how: Any) -> None:
        """Prepare a connection; with *how*, of HTTPSConnection, over TLS."""
        self.service = service
        self.port = port
        self._conn: Any = (
            http.client.HTTPSConnection('localhost', port, **how)
            if how
            else http.client.HTTPConnection('127.0.0.1', port, timeout=LIMIT_S)
        )

    def close(self) -> None:
        """Close the connection."""
        self._conn.close()

    def send(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any]:
        """Send a request; return the status, and the body parsed or text.

        :param body: bytes as they are, anything else as JSON
        """
        text = body
        if body is not None and not isinstance(body, bytes):
            text = json.dumps(body).encode()
        self._conn.request(method, path, text, headers)
        answer = self._conn.getresponse()
        found = answer.read()
        if 'json' in (answer.headers['Content-Type'] or ''):
            return answer.status, json.loads(found)
        return answer.status, found.decode()
