"""The store of ``[database] connection``, for the daemon and for commands.

Called by the main thread. Imports no more than the store needs.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from scheduler_service import errors
from scheduler_service.conf.database import timeouts
from scheduler_service.store.connection import Store


def open_store(conf: Any, for_command: bool = False) -> Store:
    """Return the store of ``[database] connection``; it connects later.

    :param for_command: statements read whole tables, without a time limit
    :raises ConfigurationError: the option is not set, or not a usable URL
    """
    url = conf.database.connection
    if not url:
        raise errors.ConfigurationError(
            '[database] connection is not set; for example '
            'postgresql+psycopg://scheduler@localhost/scheduler'
        )
    limits = timeouts(conf)
    if for_command:
        limits = dataclasses.replace(limits, statement=0, whole_tables=True)
    return Store.connect(
        url,
        limits,
        connection_recycle_time=conf.database.connection_recycle_time,
        max_pool_size=conf.database.max_pool_size,
        max_overflow=conf.database.max_overflow,
        pool_timeout=conf.database.pool_timeout,
    )
