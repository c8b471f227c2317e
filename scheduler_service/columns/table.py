"""The host table: one frozen array per attribute, one row per host."""

from __future__ import annotations

import dataclasses
from collections.abc import (
    Callable,
    Hashable,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Any

import numpy as np
import numpy.typing as npt

from scheduler_service.columns.dictionary import DictionaryColumn, Ints, Mask
from scheduler_service.columns.instances import InstanceIndex
from scheduler_service.model import Aggregate, ServerGroup
from scheduler_service.settings import Settings

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]
_CACHED_SHAPES = 512
_JOURNAL = 100_000


@dataclasses.dataclass(frozen=True, slots=True)
class ResourceColumns:
    """One resource class: capacity and use, a value per host.

    int64[n] each but ``ratio``, float64[n]: NaN means the configured default.
    A host that does not offer the class has ``total`` -1.
    """

    total: Ints
    reserved: Ints
    used: Ints
    ratio: Floats
    min_unit: Ints
    max_unit: Ints
    step_size: Ints

    def map(
        self, change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
    ) -> ResourceColumns:
        """Return the columns with *change* applied to each."""
        return ResourceColumns(
            **{
                field.name: change(getattr(self, field.name))
                for field in dataclasses.fields(self)
            }
        )

    def take(self, rows: npt.NDArray[Any]) -> ResourceColumns:
        """Return the columns of the given rows."""
        return ResourceColumns(
            self.total[rows],
            self.reserved[rows],
            self.used[rows],
            self.ratio[rows],
            self.min_unit[rows],
            self.max_unit[rows],
            self.step_size[rows],
        )

    @classmethod
    def absent(cls, rows: int) -> ResourceColumns:
        """Return columns of hosts that do not offer the class."""
        zeros = np.zeros(rows, np.int64)
        return cls(
            total=np.full(rows, -1, np.int64),
            reserved=zeros,
            used=zeros,
            ratio=np.full(rows, np.nan),
            min_unit=np.ones(rows, np.int64),
            max_unit=np.full(rows, 2**53, np.int64),
            step_size=np.ones(rows, np.int64),
        )


class Topology:
    """What moves rarely, and what was worked out from it.

    ``memo`` keeps results that depend on nothing else: the number of shapes
    it holds is bounded, and a new topology starts an empty one. ``journal``
    names the rows whose load changed, in order; it starts anew with each
    ``epoch``.
    """

    __slots__ = ('aggregates', 'epoch', 'journal', 'memo')

    def __init__(self, aggregates: Mapping[int, Aggregate]) -> None:
        self.aggregates = aggregates
        self.memo: dict[Hashable, Any] = {}
        self.journal: list[int] = []
        self.epoch = 0

    def note(self, rows: Iterable[int]) -> None:
        """Note that the load of some rows changed."""
        self.journal.extend(rows)
        if len(self.journal) > _JOURNAL:
            self.journal = []
            self.epoch += 1

    def remember(self, key: Hashable, work: Callable[[], Any]) -> Any:
        """Return what *work* gives, worked out once for each *key*."""
        try:
            return self.memo[key]
        except KeyError:
            if len(self.memo) >= _CACHED_SHAPES:
                self.memo.pop(next(iter(self.memo)))
            value = self.memo[key] = work()
            return value


@dataclasses.dataclass(frozen=True, slots=True)
class HostTable:
    """All hosts at one moment, rows in the order of their store ids.

    :ivar ids: int64[n], store ids, ascending
    :ivar numbers: plain columns by name, int64, float64 or bool, each [n]
    :ivar coded: dictionary-encoded columns by name
    :ivar resources: capacity and use by resource class
    :ivar topology: aggregates, and the memo of what depends on topology alone
    :ivar instances: which instance is where
    :ivar groups: server groups by uuid
    """

    ids: Ints
    numbers: Mapping[str, npt.NDArray[Any]]
    coded: Mapping[str, DictionaryColumn]
    resources: Mapping[str, ResourceColumns]
    topology: Topology
    instances: InstanceIndex
    groups: Mapping[str, ServerGroup]

    def __len__(self) -> int:
        return len(self.ids)

    def frozen(self, topology: Topology) -> HostTable:
        """Return a copy that others may look at while this one moves on.

        :param topology: what is worked out from the copy is remembered there
        """
        return dataclasses.replace(
            self,
            numbers={name: c.copy() for name, c in self.numbers.items()},
            resources={
                name: dataclasses.replace(one, used=one.used.copy())
                for name, one in self.resources.items()
            },
            topology=topology,
            instances=self.instances.changed(()),
        )

    def number(self, name: str) -> npt.NDArray[Any]:
        """Return a plain column by name."""
        return self.numbers[name]

    def host_at(self, row: int) -> str:
        """Return the service host of a row."""
        name: str = self.coded['host'].at(row)
        return name

    def node_at(self, row: int) -> str:
        """Return the node name of a row."""
        name: str = self.coded['node'].at(row)
        return name

    def capacity(self, name: str, settings: Settings) -> Floats:
        """Return total x ratio of a class, float64[n]; reserved not taken off.

        A ratio that a host does not state, or states as 0, is the
        configured one.
        """
        default = settings.default_ratio(name)

        def work() -> Floats:
            columns = self.resources[name]
            stated = np.nan_to_num(columns.ratio, nan=0.0)
            ratio = np.where(stated == 0.0, default, stated)
            return columns.total.astype(np.float64) * ratio

        limit: Floats = self.topology.remember(
            ('capacity', name, default), work
        )
        return limit

    def free_disk_mb(self) -> Floats:
        """Return free disk in MB, float64[n]; may be negative.

        Where a host says how much is available at least, that caps it.
        """
        disk = self.resources['DISK_GB']
        free = (disk.total - disk.used).astype(np.float64)
        if not self.some_measure_disk():
            return free * 1024.0
        least = self.numbers['disk_available_least']
        left: Floats = np.fmin(free, least) * 1024.0
        return left

    def some_measure_disk(self) -> bool:
        """Whether any host says how much disk is available at least."""
        found: bool = self.topology.remember(
            'measured',
            lambda: not np.isnan(self.numbers['disk_available_least']).all(),
        )
        return found

    def metadata_values(self, row: int, key: str) -> set[str]:
        """Return the whole metadata values under *key* of a host."""
        return self.values_of(self.coded['aggregate_set'].at(row), key)

    def values_of(self, aggregate_ids: Iterable[int], key: str) -> set[str]:
        """Return the whole metadata values under *key* of some aggregates."""
        found = (
            self.topology.aggregates[one].metadata.get(key)
            for one in aggregate_ids
        )
        return {value for value in found if value is not None}

    def split_metadata(
        self, aggregate_ids: Iterable[int], key: str | None = None
    ) -> dict[str, set[str]]:
        """Return metadata of some aggregates, values split at commas.

        :param key: only of aggregates that have this key; None: of all
        """
        found: dict[str, set[str]] = {}
        for one in aggregate_ids:
            metadata = self.topology.aggregates[one].metadata
            if key is not None and key not in metadata:
                continue
            for name, value in metadata.items():
                parts = (part.strip() for part in value.split(','))
                found.setdefault(name, set()).update(parts)
        return found

    def any_aggregate_has(self, key: str) -> bool:
        """Whether any aggregate's metadata has the key."""

        def work() -> bool:
            every = self.topology.aggregates.values()
            return any(key in one.metadata for one in every)

        found: bool = self.topology.remember(('has', key), work)
        return found

    def by_aggregates(
        self, key: Hashable, verdict: Callable[[frozenset[int]], Any]
    ) -> npt.NDArray[Any]:
        """Return what *verdict* says of each distinct set of aggregates.

        Run once per distinct set and spread to the hosts; remembered under
        *key*, which must name everything the verdict depends on.
        """
        sets = self.coded['aggregate_set']

        def work() -> npt.NDArray[Any]:
            return sets.spread(np.array([verdict(v) for v in sets.values]))

        spread: npt.NDArray[Any] = self.topology.remember(key, work)
        return spread

    def rows_of_host(self, host: str) -> Rows:
        """Return the rows of all nodes of a service host, exact case."""
        code = self.coded['host'].code(host)
        if code < 0:
            return np.empty(0, np.intp)
        order, starts = self._host_order()
        return order[starts[code] : starts[code + 1]]

    def rows_of_hosts(self, hosts: Iterable[str]) -> Rows:
        """Return the rows of several service hosts, exact case."""
        found = [self.rows_of_host(host) for host in hosts]
        return np.concatenate(found) if found else np.empty(0, np.intp)

    def lower_hosts(self) -> dict[str, list[str]]:
        """Return service hosts by their lower-case name."""

        def work() -> dict[str, list[str]]:
            by_lower: dict[str, list[str]] = {}
            for name in self.coded['host'].values:
                by_lower.setdefault(name.lower(), []).append(name)
            return by_lower

        found: dict[str, list[str]] = self.topology.remember('lower', work)
        return found

    def row_of_node(self, host: str, node: str) -> int | None:
        """Return the row of one node of one host."""
        for row in self.rows_of_host(host):
            if self.node_at(row) == node:
                return int(row)
        return None

    def row_of_id(self, store_id: int) -> int | None:
        """Return the row of a store id."""
        row = int(np.searchsorted(self.ids, store_id))
        if row < len(self.ids) and self.ids[row] == store_id:
            return row
        return None

    def mask_of(self, rows: npt.NDArray[Any] | Sequence[int]) -> Mask:
        """Return bool[n], true at *rows*."""
        mask = np.zeros(len(self), np.bool_)
        mask[np.asarray(rows, np.intp)] = True
        return mask

    def zone_at(self, row: int, default: str) -> str:
        """Return the availability zone of a host: its aggregates' or default.

        Of several the first in sorted order, so that it is always the same.
        """
        zones = self.metadata_values(row, 'availability_zone')
        named = sorted(zone for zone in zones if zone)
        return named[0] if named else default

    def _host_order(self) -> tuple[Rows, Rows]:
        """Rows sorted by service host, and where each host's rows start."""

        def work() -> tuple[Rows, Rows]:
            codes = self.coded['host'].codes
            order = np.argsort(codes, kind='stable')
            wanted = np.arange(len(self.coded['host'].values) + 1)
            return order, np.searchsorted(codes[order], wanted)

        found: tuple[Rows, Rows] = self.topology.remember('hosts', work)
        return found
