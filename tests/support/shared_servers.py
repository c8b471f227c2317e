"""One server of each kind for a whole session of pytest.

With pytest-xdist the tests run in several processes. The process that
controls them starts each server when one of them first asks for it, and
removes all at the end.
"""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import tempfile
import threading
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from tests.support import servers
from tests.support.servers import Server, ServerMissing

_START: dict[str, Callable[[], Any]] = {
    'postgresql': lambda: servers.postgresql(durable=False),
    'mariadb': lambda: servers.mariadb(durable=False),
    'rabbitmq': servers.rabbitmq,
}


class SharedServers:
    """Starts servers on demand, for this process and for others."""

    def __init__(self) -> None:
        self._running = contextlib.ExitStack()
        self._locks = {kind: threading.Lock() for kind in _START}
        self._found: dict[str, tuple[Server, str] | ServerMissing] = {}
        self._listener: Listener | None = None

    def get(self, kind: str) -> tuple[Server, str]:
        """Return a server and its URL.

        :raises ServerMissing: it is not installed
        """
        with self._locks[kind]:
            if kind not in self._found:
                try:
                    found = self._running.enter_context(_START[kind]())
                except ServerMissing as missing:
                    self._found[kind] = missing
                else:
                    self._found[kind] = found
        return _or_raise(self._found[kind])

    def listen(self) -> str:
        """Serve other processes; return the address to ask at."""
        if self._listener is None:
            folder = tempfile.mkdtemp(prefix='sched-')
            self._running.callback(shutil.rmtree, folder)
            address = str(pathlib.Path(folder) / 'servers')
            self._listener = Listener(address, 'AF_UNIX')
            thread = threading.Thread(target=self._accept)
            thread.start()
            self._running.callback(thread.join)
        return str(self._listener.address)

    def close(self) -> None:
        """Remove every server that was started."""
        if self._listener is not None:
            _ask(str(self._listener.address), '')
        self._running.close()

    def _accept(self) -> None:
        assert self._listener is not None
        with self._listener:
            while True:
                conn = self._listener.accept()
                kind = conn.recv()
                if not kind:
                    conn.send(None)
                    conn.close()
                    return
                threading.Thread(target=self._reply, args=(conn, kind)).start()

    def _reply(self, conn: Connection[Any, Any], kind: str) -> None:
        with conn:
            try:
                conn.send(self.get(kind))
            except ServerMissing as missing:
                conn.send(missing)


class RemoteServers:
    """The servers of the process that controls this one."""

    def __init__(self, address: str) -> None:
        self._address = address

    def get(self, kind: str) -> tuple[Server, str]:
        """Return a server and its URL.

        :raises ServerMissing: it is not installed
        """
        return _or_raise(_ask(self._address, kind))

    def listen(self) -> str:
        """Return the address at which still other processes may ask."""
        return self._address

    def close(self) -> None:
        """Leave the servers to the process that started them."""


def _ask(address: str, kind: str) -> Any:
    with Client(address, 'AF_UNIX') as conn:
        conn.send(kind)
        return conn.recv()


def _or_raise(found: tuple[Server, str] | ServerMissing) -> tuple[Server, str]:
    if isinstance(found, ServerMissing):
        raise found
    return found
