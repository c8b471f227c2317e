"""A client's connection: aiohttp's, with deadlines and limits.

Only the thread of the HTTP server uses the module.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import logging
import math
from collections import Counter
from typing import Any, cast

from aiohttp import web

from scheduler_service import errors
from scheduler_service.http import access
from scheduler_service.http.message import (
    HttpRequest,
    Reply,
    error_reply,
    refusal,
    too_large,
)
from scheduler_service.http.routes import Router

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


_NEVER = math.inf
# A connection without a request, or with a reply that is being read.
_IDLE = 'idle'
_CONTINUE = b'HTTP/1.1 100 Continue\r\n\r\n'
# What aiohttp does by default, and is not done here: the deadlines below end
# connections, bodies are decompressed by their routes, and nothing is logged.
_HANDLING: dict[str, Any] = {
    'keepalive_timeout': 1e9,
    'auto_decompress': False,
    'access_log': None,
}


@dataclasses.dataclass(slots=True)
class ConnectionSettings:
    """Settings that all connections share.

    :ivar request_timeout: for a request, in seconds
    :ivar idle_timeout: until the next request, and for reading a reply, in
        seconds
    :ivar era: a connection of an earlier era ends after its next reply
    """

    limits: Limits
    router: Router
    request_timeout: float
    idle_timeout: float
    era: int = 0


class Connection(web.RequestHandler):
    """Handles the requests of a connection in their order.

    :param address: of the client
    :ivar owner: whose connection it is for the limits per address
    :ivar deadline: time of the loop at which the connection is closed
    :ivar late: the reason of that
    :ivar task: connects, with TLS perhaps; None once that is done
    """

    def __init__(
        self,
        server: web.Server,
        settings: ConnectionSettings,
        loop: asyncio.AbstractEventLoop,
        address: Any,
    ) -> None:
        super().__init__(
            server,
            loop=loop,
            lingering_time=settings.request_timeout,
            **_HANDLING,
        )
        self._settings = settings
        self._clock = loop.time
        self._era = settings.era
        # Whether the connection ends after the next reply.
        self._ends = False
        self._certificate: str | None = None
        # Unlike the attribute of aiohttp, set until the socket is closed.
        self._socket: asyncio.Transport | None = None
        self.task: asyncio.Task[Any] | None = None
        self.owner = owner_of(address)
        self._expect(settings.request_timeout, 'no TLS handshake')

    def _expect(self, seconds: float, late: str) -> None:
        """Set the time at which the connection is closed, and the reason."""
        self.deadline = self._clock() + seconds
        self.late = late

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request."""
        self._socket = cast(asyncio.Transport, transport)
        self._certificate = access.certificate_name(
            transport.get_extra_info('peercert')
        )
        self._expect(self._settings.idle_timeout, _IDLE)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stop counting the connection."""
        self._settings.limits.remove(self)
        self._socket = None
        super().connection_lost(exc)

    def drop(self) -> None:
        """Close the connection at once."""
        if self._socket is not None:
            self._socket.abort()
        elif self.task is not None:
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        """Give the client the time for a request from its first byte on."""
        if self.late is _IDLE and data:
            self._expect(self._settings.request_timeout, 'sends too slowly')
        super().data_received(data)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the response to a request, whose body is still arriving."""
        settings = self._settings
        if self.late is _IDLE:
            self._expect(settings.request_timeout, 'sends too slowly')
        received = HttpRequest(
            request.method,
            request.rel_url.raw_path,
            request.rel_url.raw_query_string,
            request.headers,
            self._certificate,
        )
        body = _Body(settings.limits)
        try:
            route = settings.router.admit(received)
            if isinstance(route, Reply):
                raise _Refused(route)
            await self._receive(request, body, route.max_bytes)
            received.body = body.joined()
            self._expect(_NEVER, '')
            settings.limits.work(self)
            reply = await settings.router.handle(route, received)
        except _Refused as refused:
            reply = refused.reply
            settings.router.count_refused(reply.status)
            # aiohttp reads and drops the rest of the body for a while.
            self._ends = self._ends or not request.content.at_eof()
        finally:
            body.free()
        settings.limits.wait(self)
        self._expect(settings.idle_timeout, _IDLE)
        return self._response(reply)

    async def _receive(
        self, request: web.BaseRequest, body: _Body, limit: int
    ) -> None:
        """Read a body.

        :param limit: the most bytes that it may have
        :raises _Refused: it has more, or cannot be read
        """
        headers, content = request.headers, request.content
        size = request.content_length or 0
        if size > limit:
            raise _Refused(error_reply(too_large(size, limit)))
        coding = headers.get('Transfer-Encoding', 'chunked')
        if coding.strip().lower() != 'chunked':
            raise _Refused(refusal(501, 'Transfer-Encoding: only chunked'))
        expected = headers.get('Expect', '').lower() == '100-continue'
        if expected and self._socket is not None and not content.at_eof():
            self._socket.write(_CONTINUE)
        try:
            while not content.at_eof():
                body.add(await content.readany(), limit)
        except (web.RequestPayloadError, OSError) as fault:
            self._ends = True
            raise _Refused(
                refusal(400, f'the body did not arrive: {fault}')
            ) from None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the response to what is not valid HTTP; it is the last."""
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        self._settings.router.count_refused(status)
        self._ends = True
        first = (message or '').partition('\n')[0]
        return self._response(refusal(status, f'not valid HTTP: {first}'))

    def _response(self, reply: Reply) -> web.Response:
        response = web.Response(
            body=reply.body,
            status=reply.status,
            headers=(
                ('Content-Type', reply.content_type),
                ('Server', 'scheduler-service'),
                *reply.headers,
            ),
        )
        if self._ends or self._era != self._settings.era:
            response.force_close()
        return response


class _Refused(Exception):
    """A request is refused before it is handled.

    :ivar reply: says why
    """

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


class _Body:
    """A body that is arriving; its bytes count in the limits until freed."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, part: bytes, limit: int) -> None:
        """Add what arrived.

        :param limit: the most bytes of the body
        :raises _Refused: there are more, or all bodies together have too many
        """
        if self._size + len(part) > limit:
            raise _Refused(error_reply(too_large(None, limit)))
        if not self._limits.hold(len(part)):
            busy = errors.ServiceBusy('Too many request bodies are arriving')
            raise _Refused(error_reply(busy))
        self._size += len(part)
        self._parts.append(part)

    def joined(self) -> bytes:
        """Return the body."""
        return b''.join(self._parts)

    def free(self) -> None:
        """Drop the bytes."""
        self._limits.free(self._size)
