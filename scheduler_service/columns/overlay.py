"""Assumed placements of a batch, written into the table before the claim.

The engine's thread alone has the newest table. Instances that a batch assumes
are added to the columns of use in place, so nothing is copied however many
hosts there are; instances that were not claimed are subtracted again. Other
threads read copies.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.columns.table import HostTable
from scheduler_service.model import ServerGroup

# From this number of builds on, counting all at once is faster than each.
_FEW = 8


class _Assumed(NamedTuple):
    """An instance that was put on a host, and its place before.

    A pod has no uuid: it only takes its amounts.
    """

    row: int
    amounts: Mapping[str, int]
    uuid: str
    before: PlacedInstance | None
    group: ServerGroup | None


class Overlay:
    """Assumes instances on the hosts of a table.

    Every assumed instance ends in :meth:`commit` or :meth:`forget`.

    :ivar table: the table, with everything that is assumed
    """

    def __init__(self, table: HostTable) -> None:
        self.table = table
        self._assumed: list[_Assumed] = []

    def begin(self, count_builds: bool = True) -> int:
        """Begin to place the instances of one request, until :meth:`end`.

        Each build counts as an I/O operation of its host, for the instances
        placed after it. Afterwards the host reports it.

        :param count_builds: false where no instance is placed after another
        :return: what :meth:`forget` takes, to forget all of them
        """
        self.table.builds = [] if count_builds else None
        return len(self._assumed)

    def end(self) -> None:
        """Let builds count no more: all instances are placed, or forgotten."""
        if self.table.builds:
            self._count_builds(self.table.builds, -1)
        self.table.builds = None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Place the instances of one request; forget all if it raises."""
        start = self.begin()
        try:
            yield
        except BaseException:
            self.forget(start)
            raise
        finally:
            self.end()

    def assume(
        self,
        row: int,
        amounts: Mapping[str, int],
        placed: PlacedInstance,
        group: str | None = None,
    ) -> None:
        """Put an instance that takes *amounts* on the host of *row*."""
        table = self.table
        joined = self._join(group, placed.uuid) if group else None
        before = table.put_instance(placed.uuid, placed)
        self._assumed.append(
            _Assumed(row, amounts, placed.uuid, before, joined)
        )
        table.add_use(row, amounts, 1)
        if table.builds is not None:
            self._count_build(row, 1)
            table.builds.append(row)

    def assume_pod(self, row: int, amounts: Mapping[str, int]) -> None:
        """Have a pod take *amounts* of the host of *row*."""
        self._assumed.append(_Assumed(row, amounts, '', None, None))
        self.table.take(row, amounts, 1)

    def assume_many(
        self,
        rows: Sequence[int],
        amounts: Mapping[str, int],
        placed: Sequence[PlacedInstance],
        group: str | None = None,
    ) -> None:
        """Put several instances on the hosts of *rows*, one on each.

        :param amounts: resource class -> what each instance takes
        """
        table = self.table
        for row, instance in zip(rows, placed, strict=True):
            joined = self._join(group, instance.uuid) if group else None
            before = table.put_instance(instance.uuid, instance)
            self._assumed.append(
                _Assumed(row, amounts, instance.uuid, before, joined)
            )
        _add_use(table, rows, amounts, 1)
        if table.builds is not None:
            table.builds += rows
            self._count_builds(rows, 1)

    def commit(self, count: int | None = None) -> None:
        """Keep what was assumed: the first *count* instances, or all."""
        del self._assumed[:count]

    def forget_last(self, count: int) -> None:
        """Remove the *count* instances that were assumed last."""
        self.forget(len(self._assumed) - count)

    def forget(self, start: int = 0) -> None:
        """Remove the instances that were assumed and not committed.

        :param start: how many of them stay, the first
        """
        table = self.table
        gone = self._assumed[start:]
        del self._assumed[start:]
        pods = [assumed for assumed in gone if not assumed.uuid]
        if pods:
            for pod in pods:
                table.take(pod.row, pod.amounts, -1)
            gone = [assumed for assumed in gone if assumed.uuid]
        for assumed in reversed(gone):
            table.put_instance(assumed.uuid, assumed.before)
            if assumed.group is not None:
                table.groups[assumed.group.uuid] = assumed.group
        for amounts, some in itertools.groupby(
            gone, lambda assumed: assumed.amounts
        ):
            _add_use(table, [assumed.row for assumed in some], amounts, -1)
        if table.builds:
            builds = table.builds[-len(gone) :]
            del table.builds[-len(gone) :]
            self._count_builds(builds, -1)

    def _join(self, uuid: str, instance: str) -> ServerGroup | None:
        """Add the instance to its group; return the group as it was.

        None where there is no such group, or the instance is a member.
        """
        group = self.table.groups.get(uuid)
        if group is None or instance in group.members:
            return None
        self.table.groups[group.uuid] = msgspec.structs.replace(
            group, members=[*group.members, instance]
        )
        return group

    def _count_builds(self, rows: Sequence[int], sign: int) -> None:
        if len(rows) < _FEW:
            for row in rows:
                self._count_build(row, sign)
            return
        at, counts = np.unique(np.array(rows, np.intp), return_counts=True)
        self.table.numbers['num_io_ops'][at] += sign * counts
        self.table.load.refresh('num_io_ops', at)
        self.table.load.changes.add(at)

    def _count_build(self, row: int, sign: int) -> None:
        self.table.numbers['num_io_ops'][row] += sign
        self.table.load.refresh('num_io_ops', row)
        self.table.load.changes.add(row)


def _add_use(
    table: HostTable,
    rows: Sequence[int],
    amounts: Mapping[str, int],
    sign: int,
) -> None:
    """Count one instance more (*sign* 1) or less (-1) for each of *rows*.

    :param rows: a host may be there several times
    :param amounts: resource class -> what each instance takes
    """
    at, counts = np.unique(np.array(rows, np.intp), return_counts=True)
    counts *= sign
    table.add_use(at, amounts, counts)
