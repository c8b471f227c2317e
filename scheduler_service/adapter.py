"""What a daemon asks of an adapter: all of one trade that it works for.

``cmd.adapters`` names the adapters. The main thread calls all of this, but
for :meth:`Adapter.check`, which the thread that reloads calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scheduler_service.http.routes import Listener, Pages, Route

if TYPE_CHECKING:
    from scheduler_service.http.v1 import V1


class Adapter:
    """Base of adapters: has nothing, and does nothing."""

    def is_filled(self) -> bool:
        """Whether the store has what requests need; else follow at once.

        :raises StoreUnavailable: the database does not answer
        """
        return True

    def readiness(self) -> dict[str, Callable[[], bool]]:
        """Return what ``/readyz`` checks besides, by name."""
        return {}

    def endpoints(self, conf: Any, name: str) -> list[Any]:
        """Return what is served on the bus.

        :param name: of the daemon
        :return: (URL of the bus, target, dispatcher) of each; None in place
            of a URL: the daemon's own bus
        """
        return []

    def routes(self, conf: Any) -> tuple[list[Route], list[str]]:
        """Return routes for [http], and those paths that need no token."""
        return [], []

    def pages(self, api: V1) -> Pages | None:
        """Return pages for [http], which show what *api* returns."""
        return None

    def listeners(self, conf: Any) -> list[Listener]:
        """Return HTTP ports of its own.

        :raises ConfigurationError: other machines could connect without a
            token
        """
        return []

    def check(self, conf: Any) -> Callable[[], None]:
        """Check changed options; return what applies them.

        :raises ConfigurationError: an option cannot be used
        """
        return lambda: None

    def start(self) -> None:
        """Start what follows other services, unless that was done before."""

    def stop(self, timeout: float) -> None:
        """Follow no more.

        :param timeout: seconds to wait for each part
        """
