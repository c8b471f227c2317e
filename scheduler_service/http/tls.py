"""TLS on a connection, with one system call for each read or write.

An encrypted socket needs two calls for each record that it reads, and ends
with an exception. asyncio's own transport copies through more buffers in
Python, which takes as long as a short request.

Only the thread of the HTTP server uses the module.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator
from typing import Any

from scheduler_service import tls_verify

LOG = logging.getLogger(__name__)
# The most bytes read before other connections get their turn.
_READ_BYTES = 64 * 1024
# The most bytes of a record.
_RECORD_BYTES = 16 * 1024
# Bytes encrypted at once; the rest of a long reply follows as the client
# reads.
_WRITTEN_BYTES = 256 * 1024


def settings(cert: str, key: str, ca: str | None) -> ssl.SSLContext:
    """Return the settings of HTTPS.

    :param ca: path of the CA of client certificates, which are optional
    :raises OSError: a file cannot be read, or is not valid
    """
    context = tls_verify.widen(
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    )
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # All offered ciphers are strong. The client knows which of them are fast
    # on its processor; Go's clients prefer AES with 128 bits.
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    with _naming(f'cert_file {cert} with key_file {key}'):
        # An empty password: OpenSSL would prompt for that of an encrypted key.
        context.load_cert_chain(cert, key, password=lambda: b'')
    context.set_alpn_protocols(['http/1.1'])
    if ca:
        with _naming(f'ca_file {ca}'):
            context.load_verify_locations(ca)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


@contextlib.contextmanager
def _naming(files: str) -> Iterator[None]:
    """Prefix errors of the code inside with the files concerned."""
    try:
        yield
    except (OSError, ValueError) as fault:
        raise OSError(f'{files}: {fault}') from None


class Session:
    """One connection's TLS, between two buffers of encrypted bytes.

    :ivar tls: the state of TLS
    :ivar received: received bytes that are not decrypted yet
    :ivar to_send: encrypted bytes that are not sent yet
    """

    __slots__ = ('received', 'tls', 'to_send')

    def __init__(self, context: ssl.SSLContext) -> None:
        self.received = ssl.MemoryBIO()
        self.to_send = ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self.received, self.to_send, server_side=True
        )


async def accept(
    sock: socket.socket, context: ssl.SSLContext, protocol: asyncio.Protocol
) -> None:
    """Make the TLS handshake, then connect a protocol to its transport.

    The caller limits the time by cancelling, and closes the socket on
    failure.

    :param sock: a socket that does not block
    :raises OSError: the client does not speak TLS, or is not trusted
    """
    loop = asyncio.get_running_loop()
    session = Session(context)
    while True:
        try:
            session.tls.do_handshake()
        except ssl.SSLWantReadError:
            await loop.sock_sendall(sock, session.to_send.read())
            received = await loop.sock_recv(sock, _READ_BYTES)
            if not received:
                raise ConnectionError(
                    'the client closed the connection'
                ) from None
            session.received.write(received)
            continue
        except ssl.SSLError:
            # The client may still read the alert.
            with contextlib.suppress(OSError):
                sock.send(session.to_send.read())
            raise
        break
    await loop.sock_sendall(sock, session.to_send.read())
    transport = Transport(loop, sock, session, protocol)
    protocol.connection_made(transport)
    transport.resume_reading()


class Transport(asyncio.Transport):
    """Reads and writes a socket through a TLS session.

    The transport pauses the protocol as soon as a client is slow to read.

    :param sock: a socket that does not block; the transport closes it
    :param session: after its handshake
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        session: Session,
        protocol: asyncio.Protocol,
    ) -> None:
        super().__init__({'ssl_object': session.tls})
        self._loop = loop
        self._sock = sock
        self._session = session
        self._protocol = protocol
        self._reading = False
        # Not encrypted yet, the oldest first.
        self._plain: collections.deque[memoryview] = collections.deque()
        # Encrypted, and not sent yet.
        self._unsent = b''
        self._waiting = False
        self._closing = False
        self._closed = False

    # Reading.

    def is_reading(self) -> bool:
        """Whether the protocol is given what arrives."""
        return self._reading

    def resume_reading(self) -> None:
        """Pass arriving bytes to the protocol."""
        if self._reading or self._closing:
            return
        self._reading = True
        self._loop.add_reader(self._sock, self._read)
        if self._session.received.pending:
            # Bytes that came with the end of the handshake.
            self._loop.call_soon(self._decrypt)

    def pause_reading(self) -> None:
        """Leave arriving bytes in the socket."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._sock)

    def _read(self) -> None:
        try:
            received = self._sock.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as fault:
            self._lose(fault)
            return
        if received:
            self._session.received.write(received)
            self._decrypt()
        else:
            self._end_reading()

    def _decrypt(self) -> None:
        """Decrypt all received bytes, and pass them to the protocol."""
        if not self._reading:
            return
        received, read = self._session.received, self._session.tls.read
        data = b''
        has_ended = False
        try:
            while received.pending and not has_ended:
                piece = read(_RECORD_BYTES)
                has_ended = not piece
                data += piece
        except ssl.SSLWantReadError:
            # A record that arrived in part.
            pass
        except OSError as fault:
            self._lose(fault)
            return
        if data:
            self._give(data)
        if has_ended:
            self._end_reading()
        elif self._session.to_send.pending:
            # A message of TLS itself, such as an alert.
            self._flush()

    def _give(self, data: bytes) -> None:
        """Pass bytes to the protocol; empty: the client sends no more."""
        try:
            if data:
                self._protocol.data_received(data)
            else:
                self._protocol.eof_received()
        except Exception as fault:
            LOG.exception('A connection failed')
            self._lose(fault)

    def _end_reading(self) -> None:
        """Pass the end on; both directions end together."""
        if not self._closing:
            self._give(b'')
            self.close()

    # Writing.

    def write(self, data: Any) -> None:
        """Send bytes, now or as soon as the client reads."""
        if self._closing:
            return
        if self._waiting or len(data) > _WRITTEN_BYTES:
            self._plain.append(memoryview(data))
            self._flush()
            return
        session = self._session
        session.tls.write(data)
        encrypted = session.to_send.read()
        # The socket nearly always takes a whole reply at once.
        try:
            sent = self._sock.send(encrypted)
        except OSError:
            sent = 0
        if sent < len(encrypted):
            self._unsent = encrypted[sent:]
            self._flush()

    def _flush(self) -> None:
        """Send what can be sent now, and wait for the client with the rest."""
        if self._waiting or self._sent():
            return
        self._waiting = True
        self._loop.add_writer(self._sock, self._go_on)
        if not self._closing:
            self._protocol.pause_writing()

    def _go_on(self) -> None:
        """Continue once the client reads."""
        if not self._sent() or self._closed:
            return
        self._waiting = False
        self._loop.remove_writer(self._sock)
        if self._closing:
            self._end()
        else:
            self._protocol.resume_writing()

    def _sent(self) -> bool:
        """Send what the socket takes; return whether that was all."""
        try:
            while self._unsent or self._encrypt():
                sent = self._sock.send(self._unsent)
                self._unsent = self._unsent[sent:]
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as fault:
            self._lose(fault)
        return True

    def _encrypt(self) -> bool:
        """Encrypt the next bytes to send; return whether there are any."""
        session = self._session
        if self._plain:
            data = self._plain.popleft()
            session.tls.write(data[:_WRITTEN_BYTES])
            if len(data) > _WRITTEN_BYTES:
                self._plain.appendleft(data[_WRITTEN_BYTES:])
        if not session.to_send.pending:
            return False
        self._unsent = session.to_send.read()
        return True

    # The end.

    def is_closing(self) -> bool:
        """Whether the connection is closed, or about to be."""
        return self._closing

    def close(self) -> None:
        """Send the rest, then close the connection."""
        if self._closing:
            return
        self.pause_reading()
        self._closing = True
        if not self._waiting:
            self._end()

    def abort(self) -> None:
        """Close the connection now."""
        self._lose(None)

    def _end(self) -> None:
        """Send the end of TLS, without waiting for the client's."""
        with contextlib.suppress(OSError, ValueError):
            self._session.tls.unwrap()
        with contextlib.suppress(OSError):
            self._sock.send(self._session.to_send.read())
        self._lose(None)

    def _lose(self, fault: BaseException | None) -> None:
        if self._closed:
            return
        self._closing = self._closed = True
        self._reading = False
        self._plain.clear()
        self._unsent = b''
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._loop.call_soon(self._lost, fault)

    def _lost(self, fault: BaseException | None) -> None:
        try:
            error = fault if isinstance(fault, Exception) else None
            self._protocol.connection_lost(error)
        finally:
            self._sock.close()
