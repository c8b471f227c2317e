"""Some rows of a table, looked at as if they were all of it.

For what judges each host by its own columns alone: it sees a small table.
Columns are cut out when they are asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler_service.columns.dictionary import DictionaryColumn
from scheduler_service.columns.table import (
    Floats,
    HostTable,
    ResourceColumns,
    Topology,
)
from scheduler_service.settings import Settings


class _Cut(Mapping[str, Any]):
    """A mapping of columns, each cut when it is asked for."""

    __slots__ = ('_columns', '_cut', '_made')

    def __init__(
        self, columns: Mapping[str, Any], cut: Callable[[Any], Any]
    ) -> None:
        self._columns = columns
        self._cut = cut
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        try:
            return self._made[name]
        except KeyError:
            made = self._made[name] = self._cut(self._columns[name])
            return made

    def put(self, name: str, column: Any) -> None:
        """Let a column be another one than the cut."""
        self._made[name] = column

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


class _Forgetful(Topology):
    """A topology of the same aggregates that remembers nothing."""

    __slots__ = ()

    def remember(self, key: Hashable, work: Callable[[], Any]) -> Any:
        """Return what *work* gives: rows differ from view to view."""
        return work()


@dataclasses.dataclass(frozen=True)
class TableView(HostTable):
    """Rows of a table, in the order given.

    :ivar whole: the table they are of
    :ivar rows: int64[m]
    :ivar capacities: what was asked for of them, by class and default ratio
    """

    whole: HostTable
    rows: npt.NDArray[np.int64]
    capacities: dict[tuple[str, float], Floats]

    @classmethod
    def of(cls, whole: HostTable, rows: npt.NDArray[np.int64]) -> TableView:
        """Return a view of some rows."""

        def cut(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
            taken: npt.NDArray[Any] = column[rows]
            return taken

        def cut_coded(column: DictionaryColumn) -> DictionaryColumn:
            return column.take(rows)

        def cut_resource(columns: ResourceColumns) -> ResourceColumns:
            return columns.take(rows)

        return cls(
            ids=whole.ids[rows],
            numbers=_Cut(whole.numbers, cut),
            coded=_Cut(whole.coded, cut_coded),
            resources=_Cut(whole.resources, cut_resource),
            topology=_Forgetful(whole.topology.aggregates),
            instances=whole.instances,
            groups=whole.groups,
            whole=whole,
            rows=rows,
            capacities={},
        )

    @classmethod
    def taken(
        cls,
        whole: HostTable,
        rows: npt.NDArray[np.int64],
        amounts: Mapping[str, int],
    ) -> TableView:
        """Return a view in which each row has one instance more.

        As :class:`Overlay` takes it: of each row alone, not of all at once.
        """
        view = cls.of(whole, rows)
        numbers, resources = view.numbers, view.resources
        assert isinstance(numbers, _Cut)
        assert isinstance(resources, _Cut)
        numbers.put('num_instances', numbers['num_instances'] + 1)
        least = numbers['disk_available_least'] - amounts.get('DISK_GB', 0)
        numbers.put('disk_available_least', least)
        for name, amount in amounts.items():
            columns = resources[name]
            used = columns.used + amount
            resources.put(name, dataclasses.replace(columns, used=used))
        return view

    def capacity(self, name: str, settings: Settings) -> Floats:
        """Return the part of what the whole table remembers."""
        key = name, settings.default_ratio(name)
        found = self.capacities.get(key)
        if found is None:
            found = self.whole.capacity(name, settings)[self.rows]
            self.capacities[key] = found
        return found

    def some_measure_disk(self) -> bool:
        """Whether any host of the whole table does."""
        return self.whole.some_measure_disk()

    def any_aggregate_has(self, key: str) -> bool:
        """Whether any aggregate's metadata has the key."""
        return self.whole.any_aggregate_has(key)

    def by_aggregates(
        self, key: Hashable, verdict: Callable[[frozenset[int]], Any]
    ) -> npt.NDArray[Any]:
        """Return the part of what the whole table remembers."""
        whole = self.whole.by_aggregates(key, verdict)
        found: npt.NDArray[Any] = whole[self.rows]
        return found
