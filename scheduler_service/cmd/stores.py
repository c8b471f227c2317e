"""The store of ``[database] connection``, for the daemon and for commands.

Called by the main thread. Imports no more than the store needs.
"""

from __future__ import annotations

from typing import Any

from scheduler_service import errors
from scheduler_service.store.connection import Store
from scheduler_service.store.timeouts import Timeouts


def open_store(conf: Any, statement_timeout: float | None = None) -> Store:
    """Return the store of ``[database] connection``; it connects later.

    :param statement_timeout: in seconds, in place of the option
    :raises ConfigurationError: the option is not set, or not a usable URL
    """
    url = conf.database.connection
    if not url:
        raise errors.ConfigurationError(
            '[database] connection is not set; for example '
            'postgresql+psycopg://scheduler@localhost/scheduler'
        )
    group = conf.database
    timeouts = Timeouts(
        connect=group.connect_timeout,
        lock=group.lock_timeout,
        statement=(
            group.statement_timeout
            if statement_timeout is None
            else statement_timeout
        ),
        idle_transaction=group.idle_transaction_timeout,
        response=group.response_timeout,
    )
    return Store.connect(
        url,
        timeouts,
        connection_recycle_time=conf.database.connection_recycle_time,
        max_pool_size=conf.database.max_pool_size,
        max_overflow=conf.database.max_overflow,
        pool_timeout=conf.database.pool_timeout,
    )
