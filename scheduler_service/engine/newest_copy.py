"""One copy of the newest host table, for all threads that only read."""

from __future__ import annotations

import dataclasses
import operator
import time
from collections.abc import Callable
from typing import Any

from scheduler_service.columns import HostTable
from scheduler_service.columns.load import LoadColumns
from scheduler_service.columns.table import Snapshot
from scheduler_service.columns.table_copies import TableCopier, TableCopy
from scheduler_service.columns.topology import Topology

# A copy made in the middle of a change may lack a part of it, so it is
# compared with a new copy after this time, in seconds.
_MAX_AGE_S = 1.0


class NewestCopy:
    """Makes a copy when one is asked for and the newest table has changed.

    It may show a batch half assumed, for one second at most.

    :param snapshot: returns the newest snapshot, None before the first
    """

    def __init__(self, snapshot: Callable[[], Snapshot | None]) -> None:
        self._snapshot = snapshot
        self._copier = TableCopier()
        # Monotonic time until which the copy is used.
        self._until = 0.0
        self.forget()

    def forget(self) -> None:
        """Forget what was computed from copies: options changed."""
        with self._copier.lock:
            self._copier.forget()
            # The snapshot and the changes of the copy, and the next change.
            self._of: tuple[Any, Any] = (None, None)
            self._end = 0
            self._copy: TableCopy | None = None

    def get(self) -> TableCopy | None:
        """Return the copy; None if there is no snapshot yet.

        Its memo, the topology, belongs to kube-schedulers' calls.
        """
        snapshot = self._snapshot()
        if snapshot is None:
            return None
        with self._copier.lock:
            changes = snapshot.hosts.load.changes
            of, end = (snapshot, changes), changes.end
            is_same = end == self._end and all(map(operator.is_, of, self._of))
            if is_same and time.monotonic() < self._until:
                return self._copy
            copy = self._copier.copy(snapshot.hosts)
            if (
                not is_same
                or self._copy is None
                or not copy.is_same(self._copy)
            ):
                self._of, self._end, self._copy = of, end, copy
            self._until = time.monotonic() + _MAX_AGE_S
            return self._copy

    def table(self) -> HostTable | None:
        """Return the table of the copy with a memo for the caller alone."""
        copy = self.get()
        if copy is None:
            return None
        return dataclasses.replace(
            copy.table,
            topology=Topology(copy.table.topology.aggregates),
            load=LoadColumns(),
        )
