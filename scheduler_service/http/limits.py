"""How many connections may be open, for how long, and what they may hold.

Used by the thread of the HTTP server alone.
"""

from __future__ import annotations

import ipaddress
import logging
import math
from collections import Counter
from typing import Any, Protocol

LOG = logging.getLogger(__name__)
# Addresses of one IPv6 network of this size count as one client.
_IPV6_PREFIX = 64


class Connection(Protocol):
    """What is known of a connection here.

    :ivar owner: what its address counts as, by :func:`owner_of`
    :ivar deadline: time of the loop at which it is closed
    :ivar late: why it is closed then, one word
    """

    owner: str
    deadline: float
    late: str

    def drop(self) -> None:
        """Close the connection at once."""


class Limits:
    """The open connections, by the clients that opened them.

    A new connection is admitted when there are too many: the one that has
    waited longest for its client is closed instead, so that clients that
    only hold connections cannot keep others out. Connections whose request
    is being processed are never closed for another one.

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
        # Owner -> its connections that wait for their client, the one that
        # has waited longest first.
        self._waiting: dict[str, dict[Connection, None]] = {}
        self._counts: Counter[str] = Counter()
        self.closed: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, owner: str) -> bool:
        """Make room for a connection; false if it has to be refused."""
        if self._counts[owner] >= self.per_address:
            return self._drop_one(owner, 'address limit')
        if len(self._open) >= self.total:
            return self.make_room()
        return True

    def make_room(self) -> bool:
        """Close a connection of the client with most; false if all work."""
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
        """Count a connection no more; it may have been removed before."""
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
        late = [each for each in self._open if each.deadline < now]
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
        """Count bytes of a body no more."""
        self._buffered -= size


def owner_of(address: Any) -> str:
    """Return what a client's address counts as.

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


NEVER = math.inf
