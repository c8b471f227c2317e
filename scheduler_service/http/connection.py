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
# Reasons to close a connection.
_IDLE = 'idle'
_SLOW = 'sends too slowly'
_TOO_MANY = 'Too many request bodies are arriving'
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
        # Bytes of the body that count in the limits.
        self._held = 0
        self._certificate: str | None = None
        # Unlike the attribute of aiohttp, set until the socket is closed.
        self._socket: asyncio.Transport | None = None
        self.task: asyncio.Task[Any] | None = None
        self.owner = owner_of(address)
        self._expect(settings.request_timeout, 'no TLS handshake')

    def _expect(self, seconds: float, late: str) -> None:
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
        self._settings.limits.remove(self)
        self._socket = None
        super().connection_lost(exc)

    def drop(self) -> None:
        if self._socket is not None:
            self._socket.abort()
        elif self.task is not None:
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        """Give the client the time for a request from its first byte on."""
        if self.late is _IDLE and data:
            self._expect(self._settings.request_timeout, _SLOW)
        super().data_received(data)

    def pause_writing(self) -> None:
        """Wait for the client to read its reply."""
        self._expect(self._settings.idle_timeout, 'reads too slowly')
        super().pause_writing()

    def resume_writing(self) -> None:
        """Wait for the next request."""
        self._expect(self._settings.idle_timeout, _IDLE)
        super().resume_writing()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the response to a request, whose body is still arriving."""
        settings = self._settings
        router, limits = settings.router, settings.limits
        if self.late is _IDLE:
            self._expect(settings.request_timeout, _SLOW)
        received = _received(request, self._certificate)
        try:
            route = router.admit(received)
            if isinstance(route, Reply):
                raise _Refused(route)
            received.body = await self._receive(request, route.max_bytes)
            self.deadline, self.late = _NEVER, ''
            limits.work(self)
            # Another router may be in use by now.
            reply = await settings.router.handle(route, received)
        except _Refused as refused:
            reply = refused.reply
            if self._socket is not None:
                router.count_refused(reply.status)
            # aiohttp reads and drops the rest of the body for a while.
            self._ends = self._ends or not request.content.at_eof()
        finally:
            limits.free(self._held)
            self._held = 0
        limits.wait(self)
        self._expect(settings.idle_timeout, _IDLE)
        return self._response(reply)

    async def _receive(self, request: web.BaseRequest, limit: int) -> bytes:
        """Return the body, whose bytes count in the limits until the reply.

        :param limit: the most bytes that it may have
        :raises _Refused: it has more, or cannot be read
        """
        _check_head(request, limit)
        expected = request.headers.get('Expect', '').lower()
        if expected == '100-continue' and self._socket is not None:
            self._socket.write(_CONTINUE)
        content, parts = request.content, []
        try:
            while not content.at_eof():
                part = await content.readany()
                if self._held + len(part) > limit:
                    raise _Refused(error_reply(too_large(None, limit)))
                if not self._settings.limits.hold(len(part)):
                    raise _Refused(error_reply(errors.ServiceBusy(_TOO_MANY)))
                self._held += len(part)
                parts.append(part)
        except (web.RequestPayloadError, OSError) as fault:
            self._ends = True
            text = f'the body did not arrive: {fault}'
            raise _Refused(refusal(400, text)) from None
        return b''.join(parts)

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
        return _response(reply, self._ends or self._era != self._settings.era)


def _response(reply: Reply, is_last: bool) -> web.Response:
    response = web.Response(
        body=reply.body,
        status=reply.status,
        headers=(
            ('Content-Type', reply.content_type),
            ('Server', 'scheduler-service'),
            *reply.headers,
        ),
    )
    if is_last:
        response.force_close()
    return response


def _received(
    request: web.BaseRequest, certificate: str | None
) -> HttpRequest:
    target = request.raw_path
    if not target.startswith('/'):
        target = request.rel_url.raw_path_qs
    path, _, query = target.partition('?')
    return HttpRequest(
        request.method, path, query, request.headers, certificate
    )


def _check_head(request: web.BaseRequest, limit: int) -> None:
    size = request.content_length or 0
    if size > limit:
        raise _Refused(error_reply(too_large(size, limit)))
    coding = request.headers.get('Transfer-Encoding', 'chunked')
    if coding.strip().lower() != 'chunked':
        raise _Refused(refusal(501, 'Transfer-Encoding: only chunked'))


class _Refused(Exception):
    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply
