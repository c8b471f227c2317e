"""The commands of ``scheduler-manage``, and what several of them use."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from scheduler_service.cmd import daemon
from scheduler_service.store.connection import Store, Writer

if TYPE_CHECKING:
    from scheduler_service.rpc.client import SchedulerClient


@contextlib.contextmanager
def open_store(conf: Any) -> Iterator[Store]:
    """Give the store of ``[database] connection``.

    :raises ConfigurationError: the option is not set, or not a usable URL
    """
    store = daemon.open_store(conf)
    try:
        yield store
    finally:
        store.dispose()


@contextlib.contextmanager
def open_client(conf: Any) -> Iterator[SchedulerClient]:
    """Give a client of the daemons on ``[scheduler] topic``."""
    from scheduler_service.rpc import transport
    from scheduler_service.rpc.client import SchedulerClient

    bus = transport.for_command(conf)
    try:
        yield SchedulerClient(conf, bus, topic=conf.scheduler.topic)
    finally:
        bus.cleanup()


def read(conf: Any, query: Callable[[Any], Any]) -> Any:
    """Run a query of a connection; return its result."""
    with open_store(conf) as store, store.reading() as conn:
        return query(conn)


def write(conf: Any, work: Callable[[Writer], Any]) -> Any:
    """Run work in one transaction; return its result."""
    with open_store(conf) as store:
        return store.write(work)


def timestamp(stamp: float) -> str:
    """Return seconds since 1970 as date and time, UTC."""
    return datetime.fromtimestamp(stamp, UTC).isoformat(' ', 'milliseconds')
