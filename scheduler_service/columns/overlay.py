"""What a batch has taken so far, on top of the snapshot it started from."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from scheduler_service.columns.instances import Placed
from scheduler_service.columns.table import HostTable

_MOVING = ('num_instances', 'num_io_ops', 'disk_available_least')


class _Taking(NamedTuple):
    """One instance that was put on a host."""

    row: int
    amounts: Mapping[str, int]
    placed: Placed
    group: str | None


class Overlay:
    """A table that this batch may take from.

    The first ``take`` copies the columns of use, later ones write into the
    copies: a batch copies once, however much it places. ``table`` is what
    the next request of the batch looks at.
    """

    def __init__(self, base: HostTable) -> None:
        self.base = base
        self._table = base
        self._owned: set[str] | None = None
        self._taken: list[tuple[int, Mapping[str, int]]] = []
        self._noted: list[_Taking] = []

    @property
    def table(self) -> HostTable:
        """What the next request looks at; nothing is copied before it does."""
        for taking in self._noted:
            self._apply(taking)
        self._noted.clear()
        return self._table

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Give back, when the block raises, all that it took."""
        start = len(self._taken) + len(self._noted)
        instances, groups = self.table.instances, self.table.groups
        try:
            yield
        except BaseException:
            table = self.table
            while len(self._taken) > start:
                row, amounts = self._taken.pop()
                self._move(row, amounts, -1)
            self._table = dataclasses.replace(
                table, instances=instances, groups=groups
            )
            raise

    def take(
        self,
        row: int,
        amounts: Mapping[str, int],
        placed: Placed,
        group: str | None = None,
    ) -> None:
        """Put an instance that takes *amounts* on the host of *row*."""
        self._noted.append(_Taking(row, amounts, placed, group))

    def _apply(self, taking: _Taking) -> None:
        self._own(taking.amounts)
        self._move(taking.row, taking.amounts, 1)
        self._taken.append((taking.row, taking.amounts))
        self._place(taking.placed, taking.group)

    def published(self) -> HostTable:
        """Return the table once all that was taken is claimed.

        A build counts as an I/O operation within its batch alone: how long
        it goes on is for the host to say.
        """
        numbers = {
            **self.table.numbers,
            'num_io_ops': self.base.numbers['num_io_ops'],
        }
        return dataclasses.replace(self.table, numbers=numbers)

    def _place(self, placed: Placed, group: str | None) -> None:
        """Let the instance be seen on its host, and in its group."""
        groups = self._table.groups
        old = groups.get(group) if group else None
        if old is not None and placed.uuid not in old.members:
            grown = msgspec.structs.replace(
                old, members=[*old.members, placed.uuid]
            )
            groups = {**groups, old.uuid: grown}
        self._table = dataclasses.replace(
            self._table,
            instances=self._table.instances.changed([placed]),
            groups=groups,
        )

    def _move(self, row: int, amounts: Mapping[str, int], sign: int) -> None:
        table = self._table
        for name, amount in amounts.items():
            table.resources[name].used[row] += sign * amount
        table.numbers['num_instances'][row] += sign
        table.numbers['num_io_ops'][row] += sign
        disk = sign * amounts.get('DISK_GB', 0)
        table.numbers['disk_available_least'][row] -= disk

    def _own(self, amounts: Mapping[str, int]) -> None:
        """Make the columns that are about to change this overlay's own."""
        if self._owned is None:
            self._owned = set()
            numbers = dict(self._table.numbers)
            for name in _MOVING:
                numbers[name] = numbers[name].copy()
            self._table = dataclasses.replace(self._table, numbers=numbers)
        missing = [name for name in amounts if name not in self._owned]
        if missing:
            resources = dict(self._table.resources)
            for name in missing:
                resources[name] = dataclasses.replace(
                    resources[name], used=resources[name].used.copy()
                )
            self._table = dataclasses.replace(self._table, resources=resources)
            self._owned.update(missing)
