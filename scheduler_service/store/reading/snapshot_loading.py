"""Loads everything that a decision depends on.

Any thread may load with a connection of its own. The table is the same as
:func:`~scheduler_service.columns.build.build_table` makes of documents.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import numpy as np
from sqlalchemy.engine import Connection

from scheduler_service.columns.build import assemble
from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.store.reading import loading
from scheduler_service.store.reading.host_loading import HostReader
from scheduler_service.store.reading.instance_loading import load_instances
from scheduler_service.store.sessions import reading_whole_tables


def load_snapshot(conn: Connection) -> Snapshot:
    """Load everything that a decision depends on.

    No limit of statements applies to that. The revision is read first. Data
    that is newer than it is read again when its change is applied, which
    gives the same result.
    """
    with _without_gc(), reading_whole_tables(conn):
        revision, lineage = loading.newest_change(conn)
        # One string object for all that name the same host.
        names: dict[str, str] = {}
        reader = HostReader(conn, names)
        reader.read_all()
        index, counts = load_instances(conn, names)
        table = assemble(
            np.concatenate(reader.ids),
            reader.numbers(counts),
            reader.encoded_columns(),
            reader.resources(),
            loading.aggregates(conn),
            index,
            loading.groups(conn).values(),
        )
        return Snapshot(table, loading.pools(conn), revision, lineage)


@contextlib.contextmanager
def _without_gc() -> Iterator[None]:
    """Stop the cyclic garbage collector while many objects are made.

    Loading leaves no cycles behind, and the collector would go through all
    rows again and again.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
