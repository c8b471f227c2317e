"""A client's connection: aiohttp's, with deadlines and limits.

Only the thread of the HTTP server uses the module.
"""

from __future__ import annotations

import asyncio
import fcntl
import ipaddress
import logging
import math
import sys
import termios
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
)
from scheduler_service.http.routes import Router
from scheduler_service.model import documents

LOG = logging.getLogger(__name__)
# Addresses of one IPv6 network of this size count as one client.
_IPV6_PREFIX = 64


# Bodies of the largest size that may be arriving at a time.
_BODIES = 4
_NEVER = math.inf
# Pause between two looks whether a client has received a reply, in seconds.
_LOOK_S = 0.05
# TLS handshakes that may be unfinished at a time.
_HANDSHAKES = 200
# Reasons to close a connection.
_IDLE = 'idle'
_SLOW = 'sends too slowly'
_UNREAD = 'reads too slowly'
_TOO_MANY = 'Too many request bodies are arriving'
_CONTINUE = b'HTTP/1.1 100 Continue\r\n\r\n'
# A browser takes a reply for nothing else, gives it to no other site's page,
# and does not keep it.
_HEADERS = (
    ('Server', 'scheduler-service'),
    ('X-Content-Type-Options', 'nosniff'),
    ('Cross-Origin-Resource-Policy', 'same-origin'),
    ('Cache-Control', 'no-store'),
)
# What aiohttp does by default, and is not done here: the deadlines below end
# connections, bodies are decompressed by their routes, nothing is logged, and
# a form of a page that was filled with too much is answered by the page.
_HANDLING: dict[str, Any] = {
    'keepalive_timeout': 1e9,
    'auto_decompress': False,
    'access_log': None,
    'max_line_size': 64 * 1024,
}


class Clients:
    """The open connections, and what they share.

    At the limit, a new connection replaces the connection that has waited
    longest for its client, so that clients with many idle connections cannot
    keep others out. A connection whose request is being processed is never
    replaced.

    :param group: options of [http]
    :ivar total: how many connections there may be
    :ivar buffered: bytes of the bodies that are arriving or being processed
    :ivar closed: how many connections were closed, by reason
    :ivar era: a connection of an earlier era ends after its next reply
    """

    def __init__(self, group: Any, router: Router) -> None:
        self.use(group, router)
        self.total: int = group.max_connections
        self.buffered = 0
        self.closed: Counter[str] = Counter()
        self.era = 0
        # Those that wait for their client are in order, longest wait first.
        self._open: dict[Connection, None] = {}
        self._counts: Counter[str] = Counter()
        # Those whose TLS handshake is unfinished, oldest first.
        self._handshakes: dict[Connection, None] = {}

    def use(self, group: Any, router: Router) -> None:
        """Apply options to new connections, and to new waits."""
        self.router = router
        self.request_timeout: float = group.request_timeout
        self.idle_timeout: float = group.idle_timeout
        self.buffered_bytes: int = _BODIES * group.max_body_bytes
        self._per_address: int = group.max_connections_per_address

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, owner: str) -> bool:
        """Make room for a connection; return false if there is none."""
        if self._counts[owner] >= self._per_address:
            return self._drop_one(owner, 'address limit')
        return len(self._open) < self.total or self.make_room()

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
        for connection in self._open:
            if connection.owner == owner and connection.waits:
                self._drop(connection)
                return True
        return False

    def _drop(self, connection: Connection) -> None:
        self.remove(connection)
        connection.drop()

    def add(self, connection: Connection) -> None:
        """Count a connection, which waits for its client."""
        self._open[connection] = None
        self._counts[connection.owner] += 1

    def begin_handshake(self, connection: Connection) -> None:
        """Note an unfinished TLS handshake.

        At the limit, it replaces the oldest one of the client with most.
        """
        if len(self._handshakes) >= _HANDSHAKES:
            owners = Counter(each.owner for each in self._handshakes)
            ((most, _),) = owners.most_common(1)
            self.closed['handshake limit'] += 1
            self._drop(
                next(each for each in self._handshakes if each.owner == most)
            )
        self._handshakes[connection] = None

    def end_handshake(self, connection: Connection) -> None:
        """Note that a TLS handshake is finished, if there was one."""
        self._handshakes.pop(connection, None)

    def remove(self, connection: Connection) -> None:
        """Stop counting a connection, unless it was removed before."""
        if connection not in self._open:
            return
        self.end_handshake(connection)
        del self._open[connection]
        self._counts[connection.owner] -= 1
        if not self._counts[connection.owner]:
            del self._counts[connection.owner]

    def wait(self, connection: Connection) -> None:
        """Note that a connection waits for its client from now on."""
        if connection in self._open:
            self._open[connection] = self._open.pop(connection)

    def drop_late(self, now: float) -> bool:
        """Close the connections whose deadline has passed.

        :param now: time of the loop
        :return: whether one of them had not read its reply
        """
        unread = self.closed[_UNREAD]
        for connection in list(self._open):
            connection.see_progress()
            if connection.deadline >= now:
                continue
            self.closed[connection.late] += 1
            if connection.late != _IDLE:
                LOG.info(
                    'Closed a connection of %s: %s', connection.owner,
                    connection.late,
                )  # fmt: skip
            self._drop(connection)
        return self.closed[_UNREAD] > unread

    def drop_all(self, waiting_only: bool) -> None:
        """Close all connections, or those that wait for their client."""
        for connection in list(self._open):
            if connection.waits or not waiting_only:
                self._drop(connection)


def owner_of(address: Any) -> str:
    """Return the owner of a connection for the limits per address.

    :param address: of a socket; the first element is the host
    """
    host = str(address[0])
    if ':' not in host:
        return host
    parsed = ipaddress.IPv6Address(host.partition('%')[0])
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, _IPV6_PREFIX), strict=False))


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
        clients: Clients,
        loop: asyncio.AbstractEventLoop,
        address: Any,
    ) -> None:
        super().__init__(
            server,
            loop=loop,
            lingering_time=clients.request_timeout,
            **_HANDLING,
        )
        self._clients = clients
        self._clock = loop.time
        self._era = clients.era
        # Whether the connection ends after the next reply.
        self._ends = False
        # Bytes of the body that count in the limits.
        self._held = 0
        # Bytes of replies that the client had not received at the last look,
        # and when it must have received all, as time of the loop.
        self._unread = 0
        self._read_by = _NEVER
        self._certificate: str | None = None
        # Unlike the attribute of aiohttp, set until the socket is closed.
        self._socket: asyncio.Transport | None = None
        self.task: asyncio.Task[Any] | None = None
        self.owner = owner_of(address)
        self._expect(clients.request_timeout, 'no TLS handshake')

    @property
    def waits(self) -> bool:
        """Whether it waits for its client, not for the reply."""
        return self.deadline != _NEVER

    def _expect(self, seconds: float, late: str) -> None:
        self.deadline = self._clock() + seconds
        self.late = late

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request."""
        self._socket = cast(asyncio.Transport, transport)
        self._clients.end_handshake(self)
        self._certificate = access.certificate_name(
            transport.get_extra_info('peercert')
        )
        self._expect(self._clients.idle_timeout, _IDLE)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._clients.remove(self)
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
            self._expect(self._clients.request_timeout, _SLOW)
        super().data_received(data)

    def _expect_reading(self) -> None:
        self._expect(self._clients.request_timeout, _UNREAD)
        self.deadline = min(self.deadline, self._read_by)

    def see_progress(self) -> None:
        """Look how much of its reply the client has yet to receive.

        It has a time to go on, and another one to receive all. What is beyond
        the socket's buffer waits in this process, so that buffer is full then.
        """
        if self.late is not _UNREAD:
            return
        before, self._unread = self._unread, _unsent(self._socket)
        if not self._unread:
            self._expect(self._clients.idle_timeout, _IDLE)
        elif self._unread < before:
            self._expect_reading()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the response to a request, whose body is still arriving."""
        clients = self._clients
        # Who never reads gets no more time by sending another request.
        while self.late is _UNREAD and _unsent(self._socket):
            await asyncio.sleep(_LOOK_S)
        router = clients.router
        if self.late is not _SLOW:
            self._expect(clients.request_timeout, _SLOW)
        path, _, query = request.raw_path.partition('?')
        received = HttpRequest(
            request.method, path, query, request.headers, self._certificate,
            is_left=lambda: self._socket is None,
        )  # fmt: skip
        try:
            route = router.admit(received)
            if isinstance(route, Reply):
                raise _Refused(route)
            received.body = await self._receive(request, route.max_bytes)
            self.deadline, self.late = _NEVER, ''
            # Another router may be in use by now.
            reply = await clients.router.handle(route, received)
        except _Refused as refused:
            reply = refused.reply
            if self._socket is not None:
                router.count_refused(reply.status)
            # aiohttp reads and drops the rest of the body for a while.
            self._ends = self._ends or not request.content.at_eof()
        finally:
            clients.buffered -= self._held
            self._held = 0
        if reply.status >= 400:
            reply = clients.router.show_error(received, reply)
        clients.wait(self)
        self._unread = 0
        self._read_by = self._clock() + clients.idle_timeout
        self._expect_reading()
        return self._response(reply)

    async def _receive(self, request: web.BaseRequest, limit: int) -> bytes:
        """Return the body, whose bytes count in the limits until the reply.

        :param limit: the most bytes that it may have
        :raises _Refused: it has more, or cannot be read
        """
        size = request.content_length or 0
        if size > limit:
            raise _Refused(error_reply(documents.too_large(size, limit)))
        expected = request.headers.get('Expect', '').lower()
        if expected == '100-continue' and self._socket is not None:
            self._socket.write(_CONTINUE)
        clients, content, parts = self._clients, request.content, []
        try:
            while not content.at_eof():
                part = await content.readany()
                self._held += len(part)
                clients.buffered += len(part)
                if self._held > limit:
                    fault = documents.too_large(None, limit)
                    raise _Refused(error_reply(fault))
                if clients.buffered > clients.buffered_bytes:
                    raise _Refused(error_reply(errors.ServiceBusy(_TOO_MANY)))
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
        self._ends = True
        if status >= 500:
            super().handle_error(request, status, exc, message)
            return self._response(refusal(status, 'Internal error'))
        self._clients.router.count_refused(status)
        first = (message or '').partition('\n')[0]
        return self._response(refusal(status, f'not valid HTTP: {first}'))

    def _response(self, reply: Reply) -> web.Response:
        response = web.Response(
            body=reply.body,
            status=reply.status,
            headers=(
                ('Content-Type', reply.content_type),
                *_HEADERS,
                *reply.headers,
            ),
        )
        if self._ends or self._era != self._clients.era:
            response.force_close()
        return response


def _unsent(transport: asyncio.Transport | None) -> int:
    """Return how many bytes the peer has not confirmed to have received."""
    sock = None if transport is None else transport.get_extra_info('socket')
    if sock is None:
        return 0
    size = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(size, sys.byteorder)


class _Refused(Exception):
    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply
