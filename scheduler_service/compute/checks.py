"""Whether the compute service's servers answer, before a daemon starts.

Called by the main thread of ``scheduler-status upgrade check``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.compute.follower import databases
from scheduler_service.compute.placement import options as placement_options
from scheduler_service.compute.placement.client import PlacementClient, Roots
from scheduler_service.store.driver_errors import driver_fault, first_line

# Finds no provider, so that the answer is short.
_NO_PROVIDERS = '/resource_providers?name=-'


def cells(conf: Any) -> list[str]:
    """Return a sentence for each cell that does not answer.

    :raises ConfigurationError: the API database, or a URL, cannot be used
    """
    group = conf.compute
    try:
        with _reading(group, group.api_database) as conn:
            found = databases.cells(conn)
    except sa.exc.SQLAlchemyError as fault:
        raise errors.ConfigurationError(
            '[compute] api_database does not answer: '
            f'{first_line(driver_fault(fault))}'
        ) from None
    base = group.cell_database or group.api_database
    silent = []
    for cell in found:
        url = databases.filled_in(cell.url, base)
        try:
            with _reading(group, url) as conn:
                databases.node_marks(conn)
        except sa.exc.SQLAlchemyError as fault:
            why = first_line(driver_fault(fault))
            silent.append(f'Cell {cell.name} does not answer: {why}')
    return silent


@contextlib.contextmanager
def _reading(group: Any, url: str) -> Iterator[Any]:
    database = databases.ReadOnlyDatabase(
        url, group.connect_timeout, group.statement_timeout
    )
    with contextlib.closing(database), database.reading() as conn:
        yield conn


def placement(conf: Any) -> None:
    """Check that the placement service answers this user.

    :raises ConfigurationError: an option cannot be used
    :raises PlacementUnavailable: it does not answer, refuses, or is too old
    """
    client = PlacementClient(placement_options.new_adapter(conf))
    client.check()
    client.read(_NO_PROVIDERS, Roots)
