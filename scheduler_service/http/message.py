"""Requests and replies of the HTTP server, apart from the connection.

Stateless; any thread may use the module.
"""

from __future__ import annotations

import dataclasses
import gzip
import http
import io
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from scheduler_service import errors
from scheduler_service import extender_wire as wire
from scheduler_service.model import documents

JSON = 'application/json'
TEXT = 'text/plain; charset=utf-8'
CSV = 'text/csv; charset=utf-8'
# How a member of gzip begins. Empty ones cost time and add no content.
_MEMBER = b'\x1f\x8b\x08'
_MOST_MEMBERS = 1000


@dataclasses.dataclass(slots=True)
class HttpRequest:
    """A request, whose body may not have arrived yet.

    :ivar path: without the query, percent-encoded as it was sent
    :ivar headers: by name in any case
    :ivar certificate: the name (CN) of the client's certificate, empty where
        it has none; None: the client has no certificate of our CA
    :ivar body: as it was sent, perhaps compressed
    :ivar is_left: whether the client has closed the connection
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    certificate: str | None
    body: bytes = b''
    is_left: Callable[[], bool] = lambda: False

    def content(self, max_bytes: int) -> bytes:
        """Return the body without its content coding.

        :raises PayloadTooLarge: the content is longer than *max_bytes*
        :raises UnsupportedEncoding: the coding is not supported
        :raises InvalidRequest: the body is not valid in its coding
        """
        coding = self.headers.get('Content-Encoding', '').strip().lower()
        if coding in ('', 'identity'):
            return self.body
        if coding not in ('gzip', 'x-gzip'):
            raise errors.UnsupportedEncoding(
                'Content-Encoding: only gzip and identity are supported'
            )
        if self.body.count(_MEMBER) > _MOST_MEMBERS:
            raise errors.InvalidRequest(
                f'the body has more than {_MOST_MEMBERS} gzip members'
            )
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(self.body)) as file:
                content = file.read(max_bytes + 1)
        except (OSError, EOFError, zlib.error) as fault:
            raise errors.InvalidRequest(
                f'the body is not valid gzip: {fault}'
            ) from None
        if len(content) > max_bytes:
            raise documents.too_large(None, max_bytes)
        return content


@dataclasses.dataclass(slots=True, frozen=True)
class Reply:
    """A reply with all of its body.

    :ivar headers: further headers, name and value
    """

    status: int
    body: bytes
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


def error_reply(error: errors.SchedulerError) -> Reply:
    """Return the reply to a request that failed."""
    return Reply(error.code, wire.encode({'error': error.to_dict()}))


def refusal(status: int, message: str, *headers: Any, name: str = '') -> Reply:
    """Return the reply to a request that is refused before its route.

    :param headers: further headers, pairs of name and value
    :param name: of the error; empty: the phrase of the status
    """
    phrase = http.HTTPStatus(status).phrase
    error = {
        'name': name or phrase.replace(' ', '').replace('-', ''),
        'message': message,
        'code': status,
        'facts': {},
    }
    return Reply(status, wire.encode({'error': error}), headers=headers)
