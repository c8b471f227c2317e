"""The HTTP server: one thread that waits for all connections at once.

The thread accepts connections, and counts them from then on. aiohttp reads
requests and writes replies, asyncio makes TLS; neither blocks on a client.
``http.routes`` picks the thread that handles a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import functools
import logging
import resource
import socket
import ssl
import threading
from asyncio import sslproto
from typing import Any, cast

from aiohttp import web

from scheduler_service import tls_verify, worker
from scheduler_service.http.connection import Clients, Connection
from scheduler_service.http.routes import Router

LOG = logging.getLogger(__name__)
# Of TLS 1.2; those of TLS 1.3 are all of this kind.
_CIPHERS = 'ECDHE+AESGCM:ECDHE+CHACHA20'
_BACKLOG = 1024
_TICK_S = 0.25
# Connections accepted before open connections are polled again.
_ACCEPTED_AT_ONCE = 32
# Pause without a free file descriptor, in seconds.
_PAUSE_S = 0.1
_SHUTDOWN_S = 2.0
# How long a client may take to confirm the end of TLS, in seconds.
_TLS_END_S = 1.0
_FOREVER_S = 1e9
# Each connection of asyncio's TLS has a buffer of this size, 256 KiB by
# default. A record of TLS has 16 KiB.
sslproto.SSLProtocol.max_size = 32 * 1024
# How many connections end before their memory is given back to the system,
# which glibc does not do by itself; or one whose reply was not read. Other C
# libraries have no such function.
_ENDED = 100
_give_back = getattr(ctypes.CDLL(None), 'malloc_trim', lambda _: 0)
# Files that the rest of the daemon may have open.
_OTHER_FILES = 512
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Server:
    """Serves from :meth:`run` to :meth:`end`, on a thread of its own.

    :param group: options of [http]
    :param context: of TLS; None: without
    :param address: host and port to listen on
    :param on_end: called where its thread ended unforeseen
    :ivar clients: the open connections
    """

    _loop: asyncio.AbstractEventLoop
    _listener: socket.socket

    def __init__(
        self,
        group: Any,
        router: Router,
        context: ssl.SSLContext | None,
        address: tuple[str, int],
        on_end: worker.OnEnd | None = None,
    ) -> None:
        self._address = address
        self._on_end = on_end
        self._tls = context
        self._most: int = group.max_connections
        self.clients = Clients(group, router)
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def use(
        self, group: Any, router: Router, context: ssl.SSLContext | None
    ) -> None:
        """Apply changed options to new connections, and to new waits.

        Admitted requests are answered by the old options. Where TLS changes, a
        connection ends after its next reply, and its client connects again
        with the new certificates.

        :param group: options of [http]
        """
        before = self.clients.router
        self.clients.use(group, router)
        if context is not self._tls:
            self._tls = context
            self.clients.era += 1
        self._most = group.max_connections
        if self._thread is None:
            before.close()
            return
        self._limit_connections()
        # On the thread of the loop no request is on its way to the router.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(before.close)

    def _limit_connections(self) -> None:
        """Allow as many connections as there may be open files."""
        allowed = _files_allowed(self._most + _OTHER_FILES)
        self.clients.total = max(1, allowed - _OTHER_FILES)

    @property
    def bind_addr(self) -> tuple[str, int]:
        """The address that is listened on."""
        host, port = self._listener.getsockname()[:2]
        return host, port

    def run(self) -> None:
        """Bind, then serve on the thread.

        :raises OSError: the address cannot be used
        """
        family, *_, address = socket.getaddrinfo(
            *self._address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self._listener = socket.create_server(
            address[:2], family=family, backlog=_BACKLOG
        )
        self._listener.setblocking(False)
        self._limit_connections()
        self._new_loop()
        self._thread = worker.new_thread(
            'http', self._serve, self._on_end, self._stopping.wait
        )
        self._thread.start()

    def _new_loop(self) -> None:
        self._loop = asyncio.SelectorEventLoop()
        self._http = web.Server(
            lambda request: cast(Connection, request.protocol).answer(request),
            loop=self._loop,
        )

    def end(self) -> None:
        """Stop serving; requests in progress have two seconds."""
        if self._thread is None:
            return
        self._stopping.set()
        self._thread.join()
        self.clients.router.close(cancel=True)

    def _serve(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._main())
        except BaseException:
            # The thread starts again, on the same socket.
            self._new_loop()
            raise

    async def _main(self) -> None:
        self._loop.add_reader(self._listener, self._accept)
        try:
            await self._tick()
        finally:
            self._loop.remove_reader(self._listener)
            if self._stopping.is_set():
                self._listener.close()
            await self._close_connections()

    async def _close_connections(self) -> None:
        deadline = self._loop.time() + _SHUTDOWN_S
        # Replies from now on say that their connections end.
        self.clients.era += 1
        while len(self.clients) and self._loop.time() < deadline:
            self.clients.drop_all(waiting_only=True)
            await asyncio.sleep(0.01)
        self.clients.drop_all(waiting_only=False)
        # Let transports close their sockets.
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _tick(self) -> None:
        most, has_dropped = 0, False
        while not self._stopping.is_set():
            most = max(most, len(self.clients))
            if has_dropped or most - len(self.clients) >= _ENDED:
                most = len(self.clients)
                _give_back(0)
            # What is dropped here is closed before the next turn.
            has_dropped = self.clients.drop_late(self._loop.time())
            await asyncio.sleep(_TICK_S)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as fault:
                if fault.errno not in _OUT_OF_FILES:
                    raise
                LOG.warning('Accepting an HTTP connection failed: %s', fault)
                self.clients.make_room()
                # Open connections are served meanwhile.
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_PAUSE_S, self._resume)
                return
            self._take(sock, address)

    def _resume(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    def _take(self, sock: socket.socket, address: Any) -> None:
        connection = Connection(self._http, self.clients, self._loop, address)
        if not self.clients.admit(connection.owner):
            sock.close()
            return
        self.clients.add(connection)
        has_tls = self._tls is not None
        if has_tls:
            self.clients.begin_handshake(connection)
        connection.task = self._loop.create_task(
            self._loop.connect_accepted_socket(
                lambda: connection,
                sock,
                ssl=self._tls,
                # The connection's own deadline comes first.
                ssl_handshake_timeout=_FOREVER_S if has_tls else None,
                ssl_shutdown_timeout=_TLS_END_S if has_tls else None,
            )
        )
        connection.task.add_done_callback(
            functools.partial(self._connected, connection, sock)
        )

    def _connected(
        self,
        connection: Connection,
        sock: socket.socket,
        task: asyncio.Task[Any],
    ) -> None:
        connection.task = None
        if task.cancelled() or task.exception() is not None:
            self.clients.remove(connection)
            sock.close()


def _files_allowed(needed: int) -> int:
    """Raise the limit of open files, if necessary; return the limit.

    :param needed: the most files that may be open
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= needed:
        return needed
    allowed = needed if hard == unlimited else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < needed:
        LOG.warning(
            'Only %d files may be open, but %d are needed for [http] '
            'max_connections; raise the limit (LimitNOFILE of systemd)',
            allowed,
            needed,
        )
    return allowed


def tls_settings(cert: str, key: str, ca: str | None) -> ssl.SSLContext:
    """Return the settings of HTTPS.

    :param ca: path of the CA of client certificates, which are optional
    :raises OSError: a file cannot be read, or is not valid
    """
    context = tls_verify.widen(
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    )
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    # All offered ciphers are strong. The client has the choice, since some are
    # fast on its processor; Go's clients prefer AES with 128 bits.
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(['http/1.1'])
    files = f'cert_file {cert} with key_file {key}'
    try:
        # An empty password: OpenSSL would prompt for that of an encrypted key.
        context.load_cert_chain(cert, key, password=lambda: b'')
        if ca:
            files = f'ca_file {ca}'
            context.load_verify_locations(ca)
            context.verify_mode = ssl.CERT_OPTIONAL
    except (OSError, ValueError) as fault:
        raise OSError(f'{files}: {fault}') from None
    return context
