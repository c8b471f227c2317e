"""The daemons on a topic, as each hears of the others over the bus.

Every daemon casts a ``ping`` with its name and the id of its store to all.
The thread of the register casts, the consumer's thread hears; a lock guards
what was heard.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

from scheduler_service.bus import wire
from scheduler_service.bus.wire import Consumer, Publication
from scheduler_service.engine.health import Health
from scheduler_service.model.inventory import Document
from scheduler_service.model.limits import Name

# Seconds without a cast after which a daemon is away.
_SILENT_S = 35.0
_CAUSE = 'stores'
_CONTEXT = {
    'user_id': 'scheduler-service',
    'roles': ['service'],
    # The flag at the end has daemons that trace requests leave it out.
    'traceparent': f'00-{1:032x}-{1:016x}-00',
}


class Peer(Document):
    """A daemon.

    :ivar id: of its process
    :ivar store: the id of its store; None: it has none
    """

    id: Name
    name: Name
    store: int | None = None


class Peers:
    """The other daemons on the topic, by their signs of life.

    :param clock: monotonic seconds
    :ivar own: the daemon itself; None: before it is registered
    """

    def __init__(
        self, health: Health, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.own: Peer | None = None
        self._health = health
        self._clock = clock
        self._lock = threading.Lock()
        self._heard: dict[str, tuple[Peer, float]] = {}

    def hear(self, peer: Peer) -> None:
        """Record a sign of life of a daemon."""
        with self._lock:
            self._heard[peer.id] = peer, self._clock()

    def names(self) -> list[str]:
        """Return the names of the other daemons, sorted."""
        return sorted(peer.name for peer in self._others())

    def _others(self) -> list[Peer]:
        with self._lock:
            limit = self._clock() - _SILENT_S
            self._heard = {
                key: heard
                for key, heard in self._heard.items()
                if heard[1] > limit
            }
            heard = [peer for peer, _ in self._heard.values()]
        return [peer for peer in heard if self.own and peer.id != self.own.id]

    def elsewhere(self) -> list[str]:
        """Return the names of daemons with another store, and log them."""
        own = self.own
        names = sorted(
            peer.name
            for peer in self._others()
            if own and None not in (own.store, peer.store)
            and peer.store != own.store
        )  # fmt: skip
        if names:
            self._health.degrade(
                _CAUSE,
                f'other daemons on the topic have another database, and '
                f'decide a part of the requests: {", ".join(names)}',
                'All daemons on the topic share the database again',
            )
        else:
            self._health.recover(_CAUSE)
        return names

    def cast(self, bus: Consumer, exchange: str, topic: str) -> None:
        """Cast the daemon's own sign of life."""
        if self.own is None:
            return
        args = {'peer': msgspec.to_builtins(self.own)}
        message = wire.cast(
            _CONTEXT, {'method': 'ping', 'args': args, 'version': '1.2'}
        )
        key = wire.peers_key(topic)
        publication = Publication(
            key,
            wire.encode(message),
            # The next sign of life follows soon.
            lambda sent: None,
            exchange=exchange,
            repeated=False,
        )
        bus.call(bus.publish, publication)
