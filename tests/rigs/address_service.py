"""An address service: it reserves an address for an instance on a host."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tests.support.json_server import JsonHandler, JsonServer

# Of a call: it came, it was carried out, it was answered.
PHASES = ('came', 'done', 'answered')
Key = tuple[str, str]


class AddressService(JsonServer):
    """Keeps addresses by host and instance.

    :ivar addresses: (host, instance) -> address
    :ivar full: hosts that have no address left
    :ivar is_down: whether it closes each connection without an answer
    :ivar loses: the method of calls that it closes the connections of
    :ivar slow_s: seconds from a call until it is carried out
    :ivar twice: whether it carries out each call twice, and answers twice
    :ivar on_phase: called with the method and the phase of each call
    """

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.addresses: dict[Key, str] = {}
        self.full: set[str] = set()
        self.is_down = False
        self.loses = ''
        self.slow_s = 0.0
        self.twice = False
        self.on_phase: Callable[[str, str], None] = lambda method, phase: None
        self.calls: list[tuple[str, Key]] = []
        self._lock = threading.Lock()
        self._made = 0

    def carry_out(self, method: str, key: Key) -> int:
        """Reserve an address, or give it back; return the status."""
        with self._lock:
            self.calls.append((method, key))
            if method == 'DELETE':
                return 204 if self.addresses.pop(key, None) else 404
            if key[0] in self.full:
                return 409
            if key not in self.addresses:
                self._made += 1
                self.addresses[key] = f'2001:db8::{self._made:x}'
            return 200


class _Handler(JsonHandler):
    server: AddressService

    def _handle(self) -> None:
        service, method = self.server, self.command
        self.asked()
        host, instance = self.path.strip('/').split('/')
        service.on_phase(method, 'came')
        if service.is_down or method == service.loses:
            self.close_connection = True
            return
        time.sleep(service.slow_s)
        times = 2 if service.twice else 1
        statuses = [
            service.carry_out(method, (host, instance)) for _ in range(times)
        ]
        service.on_phase(method, 'done')
        try:
            for status in statuses:
                self.say(status, {})
        except OSError:
            # The caller is gone.
            self.close_connection = True
        service.on_phase(method, 'answered')

    do_PUT = do_DELETE = _handle
