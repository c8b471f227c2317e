"""Tells whoever mirrors the compute service that something changed there.

Any thread may notify and subscribe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from scheduler_service.engine.health import Health

LOG = logging.getLogger(__name__)


class Change(NamedTuple):
    """What a compute service told.

    :ivar method: that told it, such as ``update_instance_info``
    :ivar host: service host that it is about; None: aggregates
    """

    method: str
    host: str | None = None


Subscriber = Callable[[Change], None]


class Changes:
    """Those who want to know of changes.

    A subscriber is called on the thread that polls the bus, so it must not
    wait: it sets an event, and looks on a thread of its own.
    """

    def __init__(self, health: Health) -> None:
        self._health = health
        self._subscribers: tuple[Subscriber, ...] = ()

    def subscribe(self, subscriber: Subscriber) -> None:
        """Have a function called with each change from now on."""
        self._subscribers = (*self._subscribers, subscriber)

    def notify(self, change: Change) -> None:
        """Tell everyone; one that fails does not keep it from the others."""
        self._health.count('compute_changes', change.method)
        for subscriber in self._subscribers:
            try:
                subscriber(change)
            except Exception:
                LOG.exception('A change of %s was lost', change.method)
