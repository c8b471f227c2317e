"""A TCP proxy on loopback that fails in the ways in which networks fail."""

from __future__ import annotations

import contextlib
import enum
import select
import socket
import threading
from collections.abc import Iterator

from sqlalchemy.engine import make_url

from tests.support.servers import free_port


class Mode(enum.Enum):
    """What the proxy does with connections, old and new."""

    FORWARD = 'forward'
    # Nobody listens, and open connections are reset.
    REFUSE = 'refuse'
    # Connections are accepted, and nothing comes through.
    BLACK_HOLE = 'black hole'


class TcpProxy:
    """Forwards connections to ports in turn, until it is told otherwise.

    :ivar targets: the ports; where nobody listens, the next one counts
    """

    def __init__(self, *ports: int) -> None:
        self.targets = [*ports]
        self._lock = threading.Lock()
        self._mode = Mode.FORWARD
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._frozen: set[socket.socket] = set()
        self._last_words = b''
        # Kept while nobody listens: the system could give it to a client that
        # tries to connect to it, which would then be connected with itself.
        self.port = free_port()
        self._listener: socket.socket | None = self._listen()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def become(self, mode: Mode) -> None:
        """Treat all connections in another way from now on."""
        with self._lock:
            self._mode = mode
            if mode is Mode.REFUSE:
                assert self._listener is not None
                # Closed alone it listens until the poll of the thread ends.
                self._listener.shutdown(socket.SHUT_RDWR)
                self._listener.close()
                self._listener = None
                self._close_pairs()
            elif self._listener is None:
                self._listener = self._listen()
            if mode is Mode.FORWARD:
                self._frozen.clear()

    def freeze(self) -> None:
        """Let open connections die silently; new ones work."""
        with self._lock:
            for pair in self._pairs:
                self._frozen.update(pair)

    def freeze_after(self, text: bytes) -> None:
        """Let the next connection that sends *text* die after it, silently."""
        with self._lock:
            self._last_words = text

    def close(self) -> None:
        """End the proxy and its connections."""
        self._over.set()
        self._thread.join()
        with self._lock:
            if self._listener is not None:
                self._listener.close()
            self._close_pairs()

    def _listen(self) -> socket.socket:
        return socket.create_server(('127.0.0.1', self.port), backlog=50)

    def _close_pairs(self) -> None:
        for pair in self._pairs:
            for one in pair:
                # A reset in place of an orderly end.
                with contextlib.suppress(OSError):
                    one.setsockopt(
                        socket.SOL_SOCKET,
                        socket.SO_LINGER,
                        b'\1\0\0\0\0\0\0\0',
                    )
                one.close()
        self._pairs.clear()
        self._frozen.clear()

    def _run(self) -> None:
        while not self._over.is_set():
            with self._lock:
                waiting = [self._listener] if self._listener else []
                if self._mode is not Mode.BLACK_HOLE:
                    waiting += [
                        one
                        for pair in self._pairs
                        for one in pair
                        if one not in self._frozen
                    ]
            if not waiting:
                self._over.wait(0.02)
                continue
            # Unlike select(), with any number of connections.
            poll, open_ones = select.poll(), {}
            for one in waiting:
                with contextlib.suppress(ValueError):
                    poll.register(one, select.POLLIN)
                    open_ones[one.fileno()] = one
            ready = [open_ones[number] for number, _ in poll.poll(20)]
            with self._lock:
                for one in ready:
                    self._serve(one)

    def _serve(self, one: socket.socket) -> None:
        if one is self._listener:
            near, _ = one.accept()
            self._pairs.append((near, self._connected()))
            return
        for pair in self._pairs:
            if one in pair and self._mode is Mode.FORWARD:
                self._forward(one, pair)
                return

    def _connected(self) -> socket.socket:
        for _ in range(len(self.targets)):
            port = self.targets.pop(0)
            self.targets.append(port)
            far = socket.socket()
            with contextlib.suppress(ConnectionRefusedError):
                far.connect(('127.0.0.1', port))
                return far
            far.close()
        return socket.socket()

    def _forward(
        self, one: socket.socket, pair: tuple[socket.socket, socket.socket]
    ) -> None:
        other = pair[1] if one is pair[0] else pair[0]
        try:
            data = one.recv(65536)
            if self._last_words and self._last_words in data:
                data = data.partition(self._last_words)[0] + self._last_words
                self._last_words = b''
                self._frozen.update(pair)
            if data:
                other.sendall(data)
                return
        except OSError:
            pass
        for end in pair:
            end.close()
        self._pairs.remove(pair)
        self._frozen.difference_update(pair)


@contextlib.contextmanager
def through_proxy(url: str) -> Iterator[tuple[TcpProxy, str]]:
    """Give a proxy to a database's server, and the URL through it."""
    target = make_url(url)
    assert target.port
    with tcp_proxy(target.port) as proxy:
        near = target.set(host='127.0.0.1', port=proxy.port)
        yield proxy, near.render_as_string(hide_password=False)


@contextlib.contextmanager
def tcp_proxy(port: int) -> Iterator[TcpProxy]:
    """Run a proxy to a loopback port."""
    proxy = TcpProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
