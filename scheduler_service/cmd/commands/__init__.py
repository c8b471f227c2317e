"""The commands of ``scheduler-manage``, a module for each kind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from scheduler_service.cmd.daemon import open_store
from scheduler_service.store.connection import Store, Writer


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
