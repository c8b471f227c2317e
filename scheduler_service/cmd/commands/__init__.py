"""The commands of ``scheduler-manage``, a module for each kind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from scheduler_service.cmd.daemon import open_store
from scheduler_service.store.connection import Store, Writer

if TYPE_CHECKING:
    from scheduler_service.rpc.client import SchedulerClient


@contextlib.contextmanager
def opened(conf: Any) -> Iterator[Store]:
    """Give the store that the options name.

    :raises ConfigurationError: none is named, or it cannot be used
    """
    store = open_store(conf)
    try:
        yield store
    finally:
        store.dispose()


@contextlib.contextmanager
def open_client(conf: Any) -> Iterator[SchedulerClient]:
    """Give a client of the daemons that the options name."""
    from scheduler_service.rpc import transport
    from scheduler_service.rpc.client import SchedulerClient

    bus = transport.for_command(conf)
    try:
        yield SchedulerClient(conf, bus, topic=conf.scheduler.topic)
    finally:
        bus.cleanup()


def read(conf: Any, query: Callable[[Any], Any]) -> Any:
    """Return what a query of a connection gives."""
    with opened(conf) as store, store.reading() as conn:
        return query(conn)


def write(conf: Any, work: Callable[[Writer], Any]) -> Any:
    """Do work in one transaction; return what it gives."""
    with opened(conf) as store:
        return store.write(work)


def when(stamp: float) -> str:
    """Return a time as people read it, UTC."""
    return datetime.fromtimestamp(stamp, UTC).isoformat(' ', 'milliseconds')
