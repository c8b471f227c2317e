"""A client's connection: parses requests, and writes replies in their order.

Only the thread of the HTTP server uses the module.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import ipaddress
import logging
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast

import httptools

from scheduler_service import errors
from scheduler_service.http import access
from scheduler_service.http.message import (
    HttpRequest,
    Reply,
    error_reply,
    refusal,
    too_large,
)

LOG = logging.getLogger(__name__)
# Addresses of one IPv6 network of this size count as one client.
_IPV6_PREFIX = 64


class Limits:
    """The open connections, by client.

    At the limit, a new connection replaces the connection that has waited
    longest for its client, so that clients with many idle connections cannot
    keep others out. A connection whose request is being processed is never
    replaced.

    :ivar total: connections in all
    :ivar per_address: connections of one address
    :ivar buffered_bytes: of request bodies in all
    """

    def __init__(
        self, total: int, per_address: int, buffered_bytes: int
    ) -> None:
        self.total = total
        self.per_address = per_address
        self.buffered_bytes = buffered_bytes
        self._buffered = 0
        self._open: set[Connection] = set()
        # Owner -> its connections that wait for their client, longest wait
        # first.
        self._waiting: dict[str, dict[Connection, None]] = {}
        self._counts: Counter[str] = Counter()
        self.closed: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, owner: str) -> bool:
        """Make room for a connection; return false if there is none."""
        if self._counts[owner] >= self.per_address:
            return self._drop_one(owner, 'address limit')
        if len(self._open) >= self.total:
            return self.make_room()
        return True

    def make_room(self) -> bool:
        """Close a waiting connection of the client with most connections.

        :return: false: no connection waits
        """
        for owner, _ in self._counts.most_common():
            if self._drop_one(owner, 'limit'):
                return True
        self.closed['limit'] += 1
        return False

    def _drop_one(self, owner: str, reason: str) -> bool:
        self.closed[reason] += 1
        oldest = next(iter(self._waiting.get(owner, ())), None)
        if oldest is None:
            return False
        self.remove(oldest)
        oldest.drop()
        return True

    def add(self, connection: Connection) -> None:
        """Count a connection, which waits for its client."""
        self._open.add(connection)
        self._counts[connection.owner] += 1
        self.wait(connection)

    def remove(self, connection: Connection) -> None:
        """Stop counting a connection, unless it was removed before."""
        if connection not in self._open:
            return
        self._open.remove(connection)
        self.work(connection)
        self._counts[connection.owner] -= 1
        if not self._counts[connection.owner]:
            del self._counts[connection.owner]
            self._waiting.pop(connection.owner, None)

    def wait(self, connection: Connection) -> None:
        """Note that a connection waits for its client from now on."""
        if connection in self._open:
            waiting = self._waiting.setdefault(connection.owner, {})
            waiting[connection] = None

    def work(self, connection: Connection) -> None:
        """Note that the request of a connection is being processed."""
        self._waiting.get(connection.owner, {}).pop(connection, None)

    def drop_late(self, now: float) -> None:
        """Close the connections whose deadline has passed.

        :param now: time of the loop
        """
        late = [
            connection
            for connection in self._open
            if connection.deadline < now
        ]
        for connection in late:
            self.closed[connection.late] += 1
            if connection.late != 'idle':
                LOG.info(
                    'Closed a connection of %s: %s', connection.owner,
                    connection.late,
                )  # fmt: skip
            self.remove(connection)
            connection.drop()

    def drop_all(self, waiting_only: bool) -> None:
        """Close all connections, or those that wait for their client."""
        for connection in list(self._open):
            waiting = self._waiting.get(connection.owner, ())
            if not waiting_only or connection in waiting:
                self.remove(connection)
                connection.drop()

    def hold(self, size: int) -> bool:
        """Count bytes of a body; false, and not counted, if too many."""
        if self._buffered + size > self.buffered_bytes:
            return False
        self._buffered += size
        return True

    def free(self, size: int) -> None:
        """Stop counting bytes of a body."""
        self._buffered -= size


def owner_of(address: Any) -> str:
    """Return the owner of a connection for the limits per address.

    :param address: of a socket; the first element is the host
    """
    host = str(address[0]) if address else ''
    if ':' not in host:
        return host
    parsed = ipaddress.IPv6Address(host.partition('%')[0])
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    if parsed.is_loopback:
        return str(parsed)
    network = ipaddress.ip_network((parsed, _IPV6_PREFIX), strict=False)
    return str(network)


NEVER = math.inf


_HEADER_BYTES = 64 * 1024


class Parsed(NamedTuple):
    """A request that has arrived.

    :ivar keep: whether the connection stays open afterwards
    :ivar refusal: its reply, where it is not handled
    """

    request: HttpRequest
    keep: bool
    refusal: Reply | None


class Receiver(Protocol):
    """Callbacks of the parser."""

    def begun(self) -> None:
        """The first byte of a request has arrived."""

    def proceed(self) -> None:
        """The client waits for permission to send the body."""

    def parsed(self, parsed: Parsed) -> None:
        """A request is complete; its body counts in the limits."""

    def refused(self, reply: Reply) -> None:
        """A request was refused before it was complete."""


class RequestParser:
    """Parses the requests of a connection, up to the last.

    :param client: address of the client
    :param admit: called with a request before its body arrives; returns the
        most bytes that the body may have, or the reply that refuses it
    :ivar is_partial: whether only a part of a request has arrived
    :ivar ended: whether no further request is parsed
    :ivar discarded: bytes of the refused body that came with its head
    """

    def __init__(
        self,
        receiver: Receiver,
        client: str,
        certificate: str | None,
        admit: Callable[[HttpRequest], int | Reply],
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
        self._request: HttpRequest | None = None
        self._refusal: Reply | None = None
        self._body: bytes | bytearray = b''
        self._body_bytes = 0
        self._body_limit = 0

    def feed(self, data: bytes) -> None:
        """Parse bytes, unless the last request has arrived already."""
        if self.ended:
            return
        has_part_of_head = self.is_partial and self._request is None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The request was handled without an upgrade; further bytes may be
            # in another protocol.
            self.ended = True
        except httptools.HttpParserError as fault:
            if not self.ended:
                self._refuse(refusal(400, f'not valid HTTP: {fault}'))
            return
        if has_part_of_head and self._request is None and not self.ended:
            self._pieces_bytes += len(data)
            self._check_head(self._pieces_bytes)

    def close(self) -> None:
        """Stop parsing; drop the part of a body that has arrived."""
        self.ended = True
        self._limits.free(self._body_bytes)
        self._body_bytes = 0
        self._body = b''

    def unread(self) -> int | None:
        """Return the length of the refused body; None: chunked."""
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
        # From here on the receiver counts the body.
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
        """Make the request of target and headers, or return a refusal."""
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
        self._request = HttpRequest(
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
        """Return a refusal that needs no body; None: the body may arrive."""
        assert self._request is not None
        limit = self._admit(self._request)
        if isinstance(limit, Reply):
            return limit
        self._body_limit = limit
        size = int(self._headers.get(b'content-length', b'0'))
        return error_reply(too_large(size, limit)) if size > limit else None


# Bytes of a refused body that are read and discarded, so that a client that
# is still sending gets to read the reply.
_LINGER_BYTES = 64 * 1024 * 1024
# How long bytes that are no request are discarded, in seconds.
_LINGER_S = 1.0
_CONTINUE = b'HTTP/1.1 100 Continue\r\n\r\n'


@dataclasses.dataclass(slots=True)
class ConnectionSettings:
    """Settings that all connections share.

    :ivar admit: see :class:`RequestParser`
    :ivar handle: called with a complete request, and a function for its reply,
        to be called on the server's thread, at once or later
    :ivar count_refused: called with the status of each refused request
    :ivar request_timeout: seconds within which a request has to arrive
    :ivar idle_timeout: seconds for which an idle connection stays open
    :ivar date: present value of the header Date
    :ivar era: a number that changes with the TLS configuration
    """

    limits: Limits
    admit: Callable[[HttpRequest], int | Reply]
    handle: Callable[[HttpRequest, Callable[[Reply], None]], None]
    count_refused: Callable[[int], None]
    request_timeout: float
    idle_timeout: float
    date: bytes = b''
    era: int = 0


class Connection(asyncio.Protocol):
    """Handles the requests of a connection in their order.

    :param address: of the client
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        loop: asyncio.AbstractEventLoop,
        address: Any,
    ) -> None:
        self._settings = settings
        self._loop = loop
        self._client = str(address[0]) if address else ''
        self.owner = owner_of(address)
        self._era = settings.era
        # Both are set once the connection is made; the transport until it
        # ends.
        self._transport: asyncio.Transport | None = None
        self._parser: RequestParser | None = None
        self._is_encrypted = False
        # Parsed, and not handled yet; a reply alone ends the connection.
        self._queue: collections.deque[Parsed | Reply] = collections.deque()
        # Whether a request is being handled, or its reply being sent.
        self._busy = False
        self._advancing = False
        # Bytes that are still read after a refusal; None before one.
        self._lingering: int | None = None
        # The task that shakes hands for TLS.
        self.task: asyncio.Task[Any] | None = None
        self._expect(settings.request_timeout, 'no TLS handshake')

    def _expect(self, seconds: float, late: str) -> None:
        """Set the time at which the connection is closed, and the reason."""
        self.deadline = self._loop.time() + seconds
        self.late = late

    def _expect_client(self) -> None:
        """Wait for the rest of a request, or for the next request."""
        if self._parser is not None and self._parser.is_partial:
            self._expect(self._settings.request_timeout, 'sends too slowly')
        else:
            self._expect(self._settings.idle_timeout, 'idle')

    # From the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request."""
        self._transport = cast(asyncio.Transport, transport)
        session = transport.get_extra_info('ssl_object')
        self._is_encrypted = session is not None
        if not self._is_encrypted:
            self._transport.set_write_buffer_limits(high=0)
        self._parser = RequestParser(
            self,
            self._client,
            access.certificate_name(session),
            lambda request: self._settings.admit(request),
            self._settings.limits,
        )
        self._expect_client()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection; a reply that comes later is dropped."""
        limits = self._settings.limits
        limits.remove(self)
        self._transport = None
        if self._parser is not None:
            self._parser.close()
        for entry in self._queue:
            if isinstance(entry, Parsed):
                limits.free(len(entry.request.body))
        self._queue.clear()

    def drop(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        elif self.task is not None:
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse what arrived."""
        assert self._parser is not None
        if self._lingering is None:
            self._parser.feed(data)
            self._discard(self._parser.discarded)
            # Closes the connection after the last request.
            self._advance()
        else:
            self._discard(len(data))

    def eof_received(self) -> bool:
        """Answer what arrived completely, then close the connection."""
        assert self._parser is not None
        if not self._busy and not self._queue:
            return False
        self._parser.close()
        # Over TLS both directions end together.
        return not self._is_encrypted

    def pause_writing(self) -> None:
        """The client is slow to read: wait for it before the next request."""
        self._busy = True
        self._expect(self._settings.idle_timeout, 'reads too slowly')

    def resume_writing(self) -> None:
        """The client has read its reply."""
        if self._lingering is None:
            self._busy = False
            self._expect_client()
            self._advance()

    # From the parser.

    def begun(self) -> None:
        """Give the client the time for a request."""
        if not self._busy:
            self._expect_client()

    def proceed(self) -> None:
        """Allow the body, unless another reply has to be sent first."""
        if not self._busy and self._transport is not None:
            self._transport.write(_CONTINUE)

    def parsed(self, parsed: Parsed) -> None:
        """Handle the request after the earlier ones."""
        self._queue.append(parsed)
        if self._busy and self._transport is not None:
            # Read no further requests before this request is answered.
            self._transport.pause_reading()
        self._advance()

    def refused(self, reply: Reply) -> None:
        """Send the reply after the earlier ones, and end the connection."""
        self._settings.count_refused(reply.status)
        self._queue.append(reply)
        self._advance()

    # Replies.

    def _advance(self) -> None:
        """Handle queued requests until a reply has to be waited for."""
        if self._advancing:
            return
        self._advancing = True
        while self._queue and not self._busy:
            entry = self._queue.popleft()
            if isinstance(entry, Parsed):
                self._start(entry)
            else:
                self._end_with(entry)
        self._advancing = False
        if self._busy or self._transport is None or self._parser is None:
            return
        if self._lingering is None and self._parser.ended:
            self._transport.close()
        elif not self._transport.is_reading():
            self._transport.resume_reading()

    def _start(self, parsed: Parsed) -> None:
        """Handle a request."""
        self._busy = True
        self.deadline = NEVER
        self._settings.limits.work(self)
        size = len(parsed.request.body)

        def finish(reply: Reply) -> None:
            self._settings.limits.free(size)
            self._finish(parsed, reply)

        if parsed.refusal is None:
            self._settings.handle(parsed.request, finish)
        else:
            self._settings.count_refused(parsed.refusal.status)
            finish(parsed.refusal)

    def _finish(self, parsed: Parsed, reply: Reply) -> None:
        """Send the reply to the request that was handled."""
        if self._transport is None:
            return
        request, keep, _ = parsed
        if self._era != self._settings.era and self._parser is not None:
            keep = False
            self._parser.close()
        connection = b'' if keep else b'close'
        if keep and request.version == '1.0':
            connection = b'keep-alive'
        self._busy = False
        self._settings.limits.wait(self)
        self._expect_client()
        head_only = request.method == 'HEAD'
        date = self._settings.date
        # The write may call pause_writing, so the connection is busy again.
        self._transport.write(reply.written(connection, date, head_only))
        self._advance()

    def _end_with(self, reply: Reply) -> None:
        """Send a reply, then discard what the client is still sending.

        A connection closed with unread bytes would be reset, and the client
        might not get to read the reply.
        """
        assert self._transport is not None
        assert self._parser is not None
        unread = self._parser.unread()
        self._lingering = min(
            _LINGER_BYTES if unread is None else unread, _LINGER_BYTES
        )
        seconds = _LINGER_S
        if self._parser.was_head_valid:
            seconds = self._settings.request_timeout
        self._expect(seconds, 'refused')
        self._transport.write(
            reply.written(b'close', self._settings.date, False)
        )
        if not self._is_encrypted:
            self._transport.write_eof()
        if not self._transport.is_reading():
            self._transport.resume_reading()

    def _discard(self, size: int) -> None:
        """Count bytes after a refusal; close the connection at the limit."""
        if self._lingering is None:
            return
        self._lingering -= size
        if self._lingering <= 0 and self._transport is not None:
            self._transport.close()
