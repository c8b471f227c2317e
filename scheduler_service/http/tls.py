"""TLS on a connection: the socket itself is encrypted, and never waited for.

asyncio's own transport passes everything through two more buffers, in Python.
That takes as long as a short request takes altogether.

Used by the thread of the HTTP server alone.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import socket
import ssl
from typing import Any

LOG = logging.getLogger(__name__)
# Of one TLS record at most; then others get their turn.
_RECORD_BYTES = 16 * 1024
_RECORDS_AT_ONCE = 16


def settings(cert: str, key: str, ca: str | None) -> ssl.SSLContext:
    """Return the settings of HTTPS.

    :param ca: path of the CA of client certificates, which are optional
    :raises OSError: a file cannot be read, or is not valid
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(cert, key)
    context.set_alpn_protocols(['http/1.1'])
    if ca:
        context.load_verify_locations(ca)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


class Receiver(asyncio.Protocol):
    """Is told what arrives."""

    @property
    def expects_more(self) -> bool:
        """Whether more of what is arriving is likely to be there already."""
        return False


async def accept(
    sock: socket.socket, context: ssl.SSLContext, protocol: Receiver
) -> None:
    """Shake hands, then give a protocol its transport.

    The caller limits the time, by cancelling.

    :param sock: does not block; it belongs to this function from now on
    :raises OSError: the client does not speak TLS, or is not trusted
    """
    loop = asyncio.get_running_loop()
    encrypted = context.wrap_socket(
        sock, server_side=True, do_handshake_on_connect=False
    )
    try:
        while (wait := _step(encrypted)) is not None:
            await _ready(loop, encrypted, wait)
        transport = Transport(loop, encrypted, protocol)
        protocol.connection_made(transport)
    except BaseException:
        encrypted.close()
        raise
    transport.resume_reading()


def _step(sock: ssl.SSLSocket) -> str | None:
    """Shake hands as far as possible; say what to wait for, if anything."""
    try:
        sock.do_handshake()
    except ssl.SSLWantReadError:
        return 'reader'
    except ssl.SSLWantWriteError:
        return 'writer'
    return None


async def _ready(
    loop: asyncio.AbstractEventLoop, sock: ssl.SSLSocket, wait: str
) -> None:
    """Wait until a socket can be read from, or written to."""
    found = loop.create_future()

    def done() -> None:
        if not found.done():
            found.set_result(None)

    getattr(loop, f'add_{wait}')(sock, done)
    try:
        await found
    finally:
        getattr(loop, f'remove_{wait}')(sock)


class Transport(asyncio.Transport):
    """Reads and writes an encrypted socket.

    The protocol is told to pause as soon as a client is slow to read.

    :param sock: hands were shaken; it does not block
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: ssl.SSLSocket,
        protocol: Receiver,
    ) -> None:
        super().__init__({'ssl_object': sock})
        self._loop = loop
        self._sock = sock
        self._protocol = protocol
        self._reading = False
        # What could not be written yet. What was tried has to be tried again
        # as it was.
        self._unwritten: collections.deque[bytes] = collections.deque()
        self._closing = False
        self._closed = False

    # Reading.

    def is_reading(self) -> bool:
        """Whether the protocol is given what arrives."""
        return self._reading

    def resume_reading(self) -> None:
        """Give the protocol what arrives."""
        if not self._reading and not self._closing:
            self._reading = True
            self._loop.add_reader(self._sock, self._read)

    def pause_reading(self) -> None:
        """Leave what arrives where it is."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._sock)

    def _read(self) -> None:
        for _ in range(_RECORDS_AT_ONCE):
            try:
                data = self._sock.recv(_RECORD_BYTES)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as fault:
                self._lose(fault)
                return
            if not (self._give(data) and self._reading):
                return
            if not self._protocol.expects_more:
                # Finding nothing costs as much as finding something.
                return

    def _give(self, data: bytes) -> bool:
        """Give the protocol what arrived; false at the end."""
        try:
            if data:
                self._protocol.data_received(data)
                return True
            self._protocol.eof_received()
        except Exception as fault:
            LOG.exception('A connection failed')
            self._lose(fault)
            return False
        # Both directions end together.
        self.close()
        return False

    # Writing.

    def write(self, data: Any) -> None:
        """Send bytes, now or as soon as the client reads."""
        if self._closing:
            return
        self._unwritten.append(bytes(data))
        if len(self._unwritten) == 1 and not self._written():
            self._loop.add_writer(self._sock, self._write)
            self._protocol.pause_writing()

    def _write(self) -> None:
        """Go on, since the client reads."""
        if not self._written():
            return
        if not self._closed:
            self._loop.remove_writer(self._sock)
            if self._closing:
                self._end()
            else:
                self._protocol.resume_writing()

    def _written(self) -> bool:
        """Send what can be sent; return whether that was all."""
        while self._unwritten:
            data = self._unwritten[0]
            try:
                sent = self._sock.send(data)
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return False
            except OSError as fault:
                self._lose(fault)
                return True
            self._unwritten.popleft()
            if sent < len(data):
                self._unwritten.appendleft(data[sent:])
        return True

    # The end.

    def is_closing(self) -> bool:
        """Whether the connection is closed, or about to be."""
        return self._closing

    def close(self) -> None:
        """Send what is left to be sent, then close the connection."""
        if self._closing:
            return
        self.pause_reading()
        self._closing = True
        if not self._unwritten:
            self._end()

    def abort(self) -> None:
        """Close the connection now."""
        self._lose(None)

    def _end(self) -> None:
        """Say that nothing follows; the answer is not waited for."""
        with contextlib.suppress(OSError, ValueError):
            self._sock.unwrap()
        self._lose(None)

    def _lose(self, fault: BaseException | None) -> None:
        if self._closed:
            return
        self._closing = self._closed = True
        self._reading = False
        self._unwritten.clear()
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._loop.call_soon(self._lost, fault)

    def _lost(self, fault: BaseException | None) -> None:
        try:
            error = fault if isinstance(fault, Exception) else None
            self._protocol.connection_lost(error)
        finally:
            self._sock.close()
