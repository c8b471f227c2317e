"""Runs a WSGI application on a request that has arrived completely.

Stateless; any thread may use it.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from typing import Any
from urllib import parse

from scheduler_service.http.message import Reply, Request

# Key of the client's credentials in the environment.
CREDENTIALS = 'scheduler_service.credentials'
_WITHOUT_PREFIX = ('CONTENT_TYPE',)
_NOT_PASSED_ON = (
    b'content-length', b'content-encoding', b'transfer-encoding',
)  # fmt: skip


def run(
    app: Any,
    request: Request,
    content: bytes,
    credentials: Mapping[str, Any],
) -> Reply:
    """Return the reply of an application.

    :param content: the body without its content coding
    :param credentials: of the client, as policy rules read them
    """
    told: list[tuple[str, list[tuple[str, str]]]] = []

    def start(status: str, headers: Any, exc_info: Any = None) -> None:
        told.append((status, headers))

    environ = {**_environ(request, content), CREDENTIALS: credentials}
    body = b''.join(app(environ, start))
    status, headers = told[-1]
    content_type = next(
        (value for name, value in headers if name.lower() == 'content-type'),
        'text/plain',
    )
    others = tuple(
        (name, value)
        for name, value in headers
        if name.lower() not in ('content-type', 'content-length')
    )
    return Reply(int(status[:3]), body, content_type, others)


def _environ(request: Request, content: bytes) -> dict[str, Any]:
    """Return a request in the form of WSGI."""
    environ: dict[str, Any] = {
        'REQUEST_METHOD': request.method,
        'SCRIPT_NAME': '',
        # Bytes as latin-1: the application decodes them itself.
        'PATH_INFO': parse.unquote_to_bytes(request.path).decode('latin-1'),
        'QUERY_STRING': request.query,
        'SERVER_NAME': 'localhost',
        'SERVER_PORT': '0',
        'SERVER_PROTOCOL': f'HTTP/{request.version}',
        'REMOTE_ADDR': request.client,
        'CONTENT_LENGTH': str(len(content)),
        'wsgi.version': (1, 0),
        'wsgi.url_scheme': 'http',
        'wsgi.input': io.BytesIO(content),
        'wsgi.errors': sys.stderr,
        'wsgi.multithread': True,
        'wsgi.multiprocess': False,
        'wsgi.run_once': False,
    }
    for name, value in request.headers.items():
        # In the environment an underscore would pass for a hyphen.
        if name in _NOT_PASSED_ON or b'_' in name:
            continue
        key = name.decode('latin-1').upper().replace('-', '_')
        if key not in _WITHOUT_PREFIX:
            key = f'HTTP_{key}'
        environ[key] = value.decode('latin-1')
    return environ
