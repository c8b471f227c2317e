"""One connection of a client: requests in, replies out, one after the other.

Used by the thread of the HTTP server alone.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
from collections.abc import Callable
from typing import Any, cast

from scheduler_service.http import access
from scheduler_service.http.limits import NEVER, Limits, owner_of
from scheduler_service.http.message import Reply, Request
from scheduler_service.http.parsing import Parsed, RequestParser

# So much of a rejected body is read and discarded, so that the client, which
# may still be sending, gets to read the reply.
_LINGER_BYTES = 64 * 1024 * 1024
# The same for what is not a request at all, in seconds.
_LINGER_S = 1.0
_CONTINUE = b'HTTP/1.1 100 Continue\r\n\r\n'


@dataclasses.dataclass(slots=True)
class Settings:
    """What all connections share.

    :ivar admit: see :class:`RequestParser`
    :ivar handle: is given a complete request, and a function for its reply,
        to be called on the server's thread, at once or later
    :ivar count_refused: is given the status of each request that is not
        handled
    :ivar request_timeout: seconds within which a request has to arrive
    :ivar idle_timeout: seconds for which an idle connection stays open
    :ivar date: value of the header Date now
    :ivar era: another one where TLS is configured differently
    """

    limits: Limits
    admit: Callable[[Request], int | Reply]
    handle: Callable[[Request, Callable[[Reply], None]], None]
    count_refused: Callable[[int], None]
    request_timeout: float
    idle_timeout: float
    date: bytes = b''
    era: int = 0


class Connection(asyncio.Protocol):
    """Has the requests of a connection handled in their order.

    :param address: of the client
    """

    def __init__(
        self,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        address: Any,
    ) -> None:
        self._settings = settings
        self._loop = loop
        self._client = str(address[0]) if address else ''
        self.owner = owner_of(address)
        self._era = settings.era
        # Both are there once the connection is made; the first until it ends.
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
        """Close the connection unless something happens within a time."""
        self.deadline = self._loop.time() + seconds
        self.late = late

    def _expect_client(self) -> None:
        """Wait for the rest of a request, or for the next one."""
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
        """Have the request handled, after those that came before."""
        self._queue.append(parsed)
        if self._busy and self._transport is not None:
            # Read no further requests before this one is answered.
            self._transport.pause_reading()
        self._advance()

    def refused(self, reply: Reply) -> None:
        """Send the reply after those before it, and end the connection."""
        self._settings.count_refused(reply.status)
        self._queue.append(reply)
        self._advance()

    # Replies.

    def _advance(self) -> None:
        """Handle requests until one takes time."""
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
        """Have a request handled."""
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
        # May call pause_writing, and so be busy again.
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
        """Count bytes of a request that was refused, if it was."""
        if self._lingering is None:
            return
        self._lingering -= size
        if self._lingering <= 0 and self._transport is not None:
            self._transport.close()
