"""Makes requests of the bytes of one connection, or refuses them.

httptools parses. It refuses, among others, requests with both Content-Length
and Transfer-Encoding. Used by the thread of the HTTP server alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import httptools

from scheduler_service import errors
from scheduler_service.http.limits import Limits
from scheduler_service.http.message import (
    Reply,
    Request,
    error_reply,
    refusal,
    too_large,
)

_HEADER_BYTES = 64 * 1024


class Parsed(NamedTuple):
    """A request that has arrived.

    :ivar keep: whether the connection stays open afterwards
    :ivar refusal: its reply, where it is not handled
    """

    request: Request
    keep: bool
    refusal: Reply | None


class Receiver(Protocol):
    """Is told what arrives."""

    def begun(self) -> None:
        """The first byte of a request is there."""

    def proceed(self) -> None:
        """The client waits for permission to send the body."""

    def parsed(self, parsed: Parsed) -> None:
        """A request is complete; its body counts in the limits."""

    def refused(self, reply: Reply) -> None:
        """A request was refused before it was complete."""


class RequestParser:
    """Parses one request after the other, until one is the last.

    :param client: address of the client
    :param admit: is given a request before its body arrives; returns the
        most bytes that the body may have, or the reply that refuses it
    :ivar is_partial: whether a part of a request has arrived, and not all
    :ivar ended: whether no further request is parsed
    :ivar discarded: bytes of the refused body that came with its head
    """

    def __init__(
        self,
        receiver: Receiver,
        client: str,
        certificate: str | None,
        admit: Callable[[Request], int | Reply],
        limits: Limits,
    ) -> None:
        self._receiver = receiver
        self._client = client
        self._certificate = certificate
        self._admit = admit
        self._limits = limits
        self._parser = httptools.HttpRequestParser(self)
        self.is_partial = False
        self.ended = False
        self.discarded = 0
        self._reset()

    def _reset(self) -> None:
        """Prepare for the next request."""
        self._target = b''
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        # Of pieces that did not complete the head.
        self._pieces_bytes = 0
        self._request: Request | None = None
        self._refusal: Reply | None = None
        self._body: bytes | bytearray = b''
        self._body_bytes = 0
        self._body_limit = 0

    def feed(self, data: bytes) -> None:
        """Parse bytes, unless the last request was there already."""
        if self.ended:
            return
        has_part_of_head = self.is_partial and self._request is None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The request was taken as if it had not asked for an upgrade;
            # what follows may be in another protocol.
            self.ended = True
        except httptools.HttpParserError as fault:
            if not self.ended:
                self._refuse(refusal(400, f'not valid HTTP: {fault}'))
            return
        if has_part_of_head and self._request is None and not self.ended:
            self._pieces_bytes += len(data)
            self._check_head(self._pieces_bytes)

    def close(self) -> None:
        """Parse nothing more; the body that was arriving counts no more."""
        self.ended = True
        self._limits.free(self._body_bytes)
        self._body_bytes = 0
        self._body = b''

    def unread(self) -> int | None:
        """Return how long the refused body is; None: nobody knows."""
        if self._request is None or b'transfer-encoding' in self._headers:
            return None
        return int(self._headers.get(b'content-length', b'0'))

    @property
    def was_head_valid(self) -> bool:
        """Whether the head of the newest request was valid."""
        return self._request is not None

    # Called by httptools.

    def on_message_begin(self) -> None:
        """A request begins to arrive."""
        if not self.ended:
            self._reset()
            self.is_partial = True
            self._receiver.begun()

    def on_url(self, url: bytes) -> None:
        """Add a part of the target."""
        self._target += url
        self._head_bytes += len(url)
        if self._head_bytes > _HEADER_BYTES:
            self._check_head(self._head_bytes)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; trailers are ignored."""
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > _HEADER_BYTES:
            self._check_head(self._head_bytes)
        if self._request is not None or self.ended:
            return
        name = name.lower()
        if name in self._headers:
            value = self._headers[name] + b', ' + value
        self._headers[name] = value

    def on_headers_complete(self) -> None:
        """Refuse the request now if its body need not be read."""
        if self.ended:
            return
        reply = self._take_head()
        if reply is None and self._has_body() and self._is_upgrade():
            # The parser takes the body for another protocol's.
            reply = refusal(400, 'an upgrade with a body is not supported')
        if reply is None:
            reply = self._refusal = self._check_length()
        if reply is not None and (self._request is None or self._has_body()):
            self._refuse(reply)
        elif self._headers.get(b'expect', b'').lower() == b'100-continue':
            self._receiver.proceed()

    def on_body(self, body: bytes) -> None:
        """Add a part of the body."""
        if self.ended:
            self.discarded += len(body)
            return
        if self._body_bytes + len(body) > self._body_limit:
            self._refuse(error_reply(too_large(None, self._body_limit)))
        elif not self._limits.hold(len(body)):
            busy = errors.ServiceBusy('Too many request bodies are arriving')
            self._refuse(error_reply(busy))
        else:
            self._body_bytes += len(body)
            if not self._body:
                self._body = body
                return
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += body

    def on_message_complete(self) -> None:
        """Hand the request on."""
        if self.ended or self._request is None:
            return
        self.is_partial = False
        self._request.body = bytes(self._body)
        self._body = b''
        # The receiver goes on to count it.
        self._body_bytes = 0
        keep = (
            self._parser.should_keep_alive()
            and not self._parser.should_upgrade()
        )
        self.ended = not keep
        self._receiver.parsed(Parsed(self._request, keep, self._refusal))

    # The head of a request.

    def _refuse(self, reply: Reply) -> None:
        self.close()
        self._receiver.refused(reply)

    def _check_head(self, size: int) -> None:
        if size > _HEADER_BYTES and not self.ended:
            self._refuse(
                refusal(
                    431, f'the headers have more than {_HEADER_BYTES} bytes'
                )
            )

    def _is_upgrade(self) -> bool:
        return bool(self._parser.should_upgrade())

    def _has_body(self) -> bool:
        return self.unread() != 0

    def _take_head(self) -> Reply | None:
        """Make the request of target and headers; return why not."""
        version = self._parser.get_http_version()
        if version not in ('1.0', '1.1'):
            return refusal(505, 'only HTTP/1.0 and HTTP/1.1 are supported')
        host = self._headers.get(b'host')
        if (host is None and version == '1.1') or b',' in (host or b''):
            return refusal(400, 'exactly one header Host is required')
        coding = self._headers.get(b'transfer-encoding')
        if coding is not None:
            if version == '1.0':
                return refusal(400, 'HTTP/1.0 has no Transfer-Encoding')
            if coding.strip().lower() != b'chunked':
                return refusal(501, 'Transfer-Encoding: only chunked')
        target = self._split_target()
        if target is None:
            return refusal(400, 'the target is not valid')
        self._request = Request(
            self._parser.get_method().decode('latin-1'),
            *target,
            version,
            self._headers,
            self._client,
            self._certificate,
        )
        return None

    def _split_target(self) -> tuple[str, str] | None:
        """Return path and query; None if the target is not valid."""
        if self._target.startswith(b'/'):
            path, _, query = self._target.partition(b'?')
            return path.decode('latin-1'), query.decode('latin-1')
        try:
            parsed = httptools.parse_url(self._target)
        except httptools.HttpParserError:
            return None
        path, query = parsed.path or b'/', parsed.query or b''
        return path.decode('latin-1'), query.decode('latin-1')

    def _check_length(self) -> Reply | None:
        """Return why the request is refused before its body."""
        assert self._request is not None
        limit = self._admit(self._request)
        if isinstance(limit, Reply):
            return limit
        self._body_limit = limit
        size = int(self._headers.get(b'content-length', b'0'))
        return error_reply(too_large(size, limit)) if size > limit else None
