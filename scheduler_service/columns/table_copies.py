"""Copies of the newest host table, for threads beside the engine's.

The newest table belongs to the engine's thread, which changes it in place.
A :class:`TableCopier` owns the copies it makes; the threads that filter and
weigh hosts on them share one memo, and therefore hold ``lock`` meanwhile.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Mapping

import numpy as np

from scheduler_service.columns import HostTable
from scheduler_service.columns.topology import Topology


def node_name(node: str) -> str:
    """Return the name of a node in a form that Kubernetes allows."""
    name = re.sub(r'[^a-z0-9.-]', '-', node.lower())[:253]
    return name.strip('-.') or 'node'


def node_names(table: HostTable) -> list[str]:
    """Return a unique name for every row of the table.

    A name that is taken already gets a part of the host's uuid.
    """
    taken: set[str] = set()
    names = []
    for row in range(len(table)):
        name = node_name(table.node_at(row))
        if name in taken:
            short = str(table.coded['uuid'].at(row))[:8]
            name = f'{name[:244]}-{short}'
        taken.add(name)
        names.append(name)
    return names


@dataclasses.dataclass(frozen=True, slots=True)
class TableCopy:
    """A table that does not change, with the names of its nodes.

    :ivar names: node name of each row, as extenders know it
    :ivar rows: node name -> row
    :ivar packed_rows: node name -> row as the bytes of an int64
    """

    table: HostTable
    names: list[str]
    rows: Mapping[str, int]
    packed_rows: Mapping[str, bytes]

    def is_same(self, other: TableCopy) -> bool:
        """Whether another copy of the same table is equal."""
        own, compared = self.table, other.table
        return (
            own.topology is compared.topology
            and own.instances.is_same(compared.instances)
            and own.groups == compared.groups
            # Compared as bytes, NaN is equal to NaN.
            and all(
                column.tobytes() == compared.numbers[name].tobytes()
                for name, column in own.numbers.items()
            )
            and all(
                columns.used.tobytes()
                == compared.resources[name].used.tobytes()
                for name, columns in own.resources.items()
            )
        )


class TableCopier:
    """Makes copies of tables.

    Copies of tables with one topology share their node names and the memo of
    what was computed from that topology, apart from the engine's own.

    :ivar lock: to be held while filtering or weighing on a copy
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        # The topology that was copied last, and its first copy.
        self._last: tuple[Topology, TableCopy] | None = None

    def forget(self) -> None:
        """Forget what was computed from copies: options changed."""
        with self.lock:
            self._last = None

    def copy(self, table: HostTable) -> TableCopy:
        """Return a copy of a table.

        On the thread that changes the table the copy is exact. On another
        thread it may have some of the instances that a batch assumes: good
        enough to evaluate nodes, not to claim.
        """
        with self.lock:
            if self._last is None or self._last[0] is not table.topology:
                topology = Topology(table.topology.aggregates)
                names = node_names(table)
                rows = {name: row for row, name in enumerate(names)}
                packed = {
                    name: np.int64(row).tobytes() for name, row in rows.items()
                }
                first = TableCopy(table.copy(topology), names, rows, packed)
                self._last = table.topology, first
                return first
            first = self._last[1]
            copied = table.copy(first.table.topology)
            return dataclasses.replace(first, table=copied)
