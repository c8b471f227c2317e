"""What a batch takes, written into the table it is taken from.

The engine alone has the newest table, and writes what a batch takes straight
into its columns of use: nothing is copied, however many hosts there are.
What comes to nothing is given back in the same way. Whoever else wants to
look at a table for longer is handed a copy.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.columns.table import HostTable
from scheduler_service.model import ServerGroup


class _Taken(NamedTuple):
    """One instance that was put on a host, and what was there before."""

    row: int
    amounts: Mapping[str, int]
    uuid: str
    before: PlacedInstance | None
    groups: Mapping[str, ServerGroup]


class Overlay:
    """A table that a batch takes from; ``table`` has all that it took.

    It ends with :meth:`published` or :meth:`discard`.

    :ivar trial: whether it will be discarded in any case
    """

    def __init__(self, base: HostTable, trial: bool = False) -> None:
        self.table = base
        self.trial = trial
        self._taken: list[_Taken] = []
        # Rows on which the request that is under way builds.
        self._builds: list[int] | None = None

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Place a request's instances; give back all of them if it raises.

        Within the block a build counts as an I/O operation for those placed
        after it. Beyond that it is for the host to say.
        """
        start = len(self._taken)
        self._builds = []
        try:
            yield
        except BaseException:
            self._give_back(start)
            raise
        finally:
            self._let_go(self._builds)
            self._builds = None

    def _let_go(self, builds: list[int]) -> None:
        if builds:
            operations = self.table.numbers['num_io_ops']
            np.subtract.at(operations, builds, 1)
            self.table.topology.note(builds)

    def take(
        self,
        row: int,
        amounts: Mapping[str, int],
        placed: PlacedInstance,
        group: str | None = None,
    ) -> None:
        """Put an instance that takes *amounts* on the host of *row*."""
        table = self.table
        before = table.instances.get(placed.uuid)
        self._taken.append(
            _Taken(row, amounts, placed.uuid, before, table.groups)
        )
        self._move(row, amounts, 1)
        if self._builds is not None:
            table.numbers['num_io_ops'][row] += 1
            self._builds.append(row)
        table.instances.put(placed.uuid, placed)
        if group:
            self._join(group, placed.uuid)

    def published(self, count: int | None = None) -> HostTable:
        """Return the table once what was taken is claimed.

        :param count: of how many instances, those taken first; None: of all
        """
        del self._taken[:count]
        return self.table

    def discard(self) -> None:
        """Give back all that was taken and not published."""
        self._give_back(0)

    def _give_back(self, start: int) -> None:
        while len(self._taken) > start:
            taken = self._taken.pop()
            self._move(taken.row, taken.amounts, -1)
            self.table.instances.put(taken.uuid, taken.before)
            if self.table.groups is not taken.groups:
                self.table = dataclasses.replace(
                    self.table, groups=taken.groups
                )

    def _join(self, group: str, uuid: str) -> None:
        """Let the instance be seen in its group."""
        groups = self.table.groups
        old = groups.get(group)
        if old is None or uuid in old.members:
            return
        grown = msgspec.structs.replace(old, members=[*old.members, uuid])
        self.table = dataclasses.replace(
            self.table, groups={**groups, old.uuid: grown}
        )

    def _move(self, row: int, amounts: Mapping[str, int], sign: int) -> None:
        table = self.table
        for name, amount in amounts.items():
            table.resources[name].used[row] += sign * amount
        table.numbers['num_instances'][row] += sign
        disk = sign * amounts.get('DISK_GB', 0)
        table.numbers['disk_available_least'][row] -= disk
        table.topology.note((row,))
