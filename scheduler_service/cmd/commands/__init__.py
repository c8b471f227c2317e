"""The commands of ``scheduler-manage``, a module for each kind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from scheduler_service.cmd.daemon import open_store
from scheduler_service.store.connection import Store


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
