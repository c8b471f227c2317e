"""Copies of the newest table, for threads beside the engine's."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping

from scheduler_service.columns import HostTable
from scheduler_service.columns.topology import Topology
from scheduler_service.extender import objects


@dataclasses.dataclass(frozen=True, slots=True)
class TableCopy:
    """A table that nobody writes to, and its rows' node names.

    :ivar rows: node name -> row
    """

    table: HostTable
    names: list[str]
    rows: Mapping[str, int]


class TableCopier:
    """Freezes tables; what is worked out from them is remembered here.

    The engine's own memory is its thread's alone. Whoever judges hosts on a
    frozen table does so under ``lock``, for the memory here is shared.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._last: tuple[Topology, TableCopy] | None = None

    def freeze(self, table: HostTable) -> TableCopy:
        """Return a copy of a table."""
        with self.lock:
            if self._last is None or self._last[0] is not table.topology:
                side = Topology(table.topology.aggregates)
                names = objects.node_names(table)
                rows = {name: row for row, name in enumerate(names)}
                first = TableCopy(table.copy(side), names, rows)
                self._last = table.topology, first
                return first
            kept = self._last[1]
            copied = table.copy(kept.table.topology)
            return dataclasses.replace(kept, table=copied)
