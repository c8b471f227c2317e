"""A daemon with the compute service's interface, and callers of it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.compute import HOSTS, ComputeCaller, new_topic


class Compute:
    """A daemon in this process, and those who call it."""

    def __init__(self, service: Any) -> None:
        self.service = service
        self.daemon = service.daemon
        self.store = service.store
        self.topic = service.conf.compute.topic
        self._callers: list[ComputeCaller] = []

    def caller(self, **how: Any) -> ComputeCaller:
        """Return a caller; *how* are its times."""
        self._callers.append(
            ComputeCaller(self.service.url, self.topic, **how)
        )
        return self._callers[-1]

    def select(self, **fields: Any) -> Any:
        """Ask for hosts."""
        if not self._callers:
            self.caller()
        return self._callers[0].select(**fields)

    def close(self) -> None:
        """Close the callers."""
        for caller in self._callers:
            caller.transport.cleanup()


@pytest.fixture
def make_compute(
    make_service: Callable[..., Any],
) -> Iterator[Callable[..., Compute]]:
    """Give a function that starts a daemon on a kind of bus."""
    made: list[Compute] = []

    def make(bus: str = 'inproc', **more: Any) -> Compute:
        more.setdefault('compute__topic', new_topic())
        more.setdefault('inventory', HOSTS)
        service = make_service(bus, compute__enabled=True, **more)
        made.append(Compute(service))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def serve_external(serve_http: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function that starts a daemon that orders hosts over HTTP."""

    def serve(**more: Any) -> Any:
        options = {'inventory': HOSTS, 'compute__external_scheduler': True}
        return serve_http(**{**options, **more})

    return serve
