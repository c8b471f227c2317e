"""The host table: one array per attribute, one row per host.

One thread owns a table and alone has it written to, by
:mod:`scheduler_service.columns.changes`: the engine's thread owns the newest
table, other threads their copies.

A :class:`Snapshot` is the hosts and pools that a decision reads, at one
moment. Columns of the documents that hosts report are made at their first
use.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from scheduler_service.columns.dictionary import (
    DictionaryColumn,
    Floats,
    Ints,
    Mask,
    Rows,
)
from scheduler_service.columns.instances import InstanceIndex
from scheduler_service.columns.load import Formula, LoadColumns
from scheduler_service.columns.topology import Topology, least_number
from scheduler_service.model import Aggregate, Pool, Request, ServerGroup
from scheduler_service.settings import Settings


@dataclasses.dataclass(frozen=True, slots=True)
class ResourceColumns:
    """One resource class: capacity and use, a value per host.

    int64[n] each but ``ratio``, float64[n]: NaN where a host states none.
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
        self, change: Callable[..., npt.NDArray[Any]], *others: ResourceColumns
    ) -> ResourceColumns:
        """Return *change* of each column, and of the same column of others."""
        return ResourceColumns(
            **{
                field.name: change(
                    *(getattr(each, field.name) for each in (self, *others))
                )
                for field in dataclasses.fields(self)
            }
        )

    def where(self, mask: Mask, other: ResourceColumns) -> ResourceColumns:
        """Return these where *mask* holds, bool[n], and others elsewhere."""
        return self.map(lambda *both: np.where(mask, *both), other)

    def capacity(self, default_ratio: float) -> Floats:
        """Return how much of the class may be in use, float64[n].

        This is the rule of allocation ratios, which claims follow in SQL
        (``store.claims.claim_sql``): ``(total - reserved) x ratio``, where a
        host that states no ratio, or 0, has the default of the class.

        :param default_ratio: see :meth:`Settings.default_ratio`
        """
        return (self.total - self.reserved) * self.ratios(default_ratio)

    def ratios(self, default: float) -> Floats:
        """Return the ratio that counts for each host, float64[n]."""
        stated = np.nan_to_num(self.ratio, nan=0.0)
        return np.where(stated == 0.0, default, stated)

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


@dataclasses.dataclass(slots=True)
class HostTable:
    """All hosts at one moment, rows in the order of their store ids.

    :ivar ids: int64[n], store ids, ascending
    :ivar numbers: plain columns by name, int64, float64 or bool, each [n]
    :ivar coded: dictionary-encoded columns by name
    :ivar resources: capacity and use by resource class
    :ivar topology: aggregates, and the memo of what depends on topology alone
    :ivar instances: which instance is where
    :ivar groups: server groups by uuid
    :ivar shared: resource class that aggregates offer -> the provider of each
        host, int64[n]: that of an aggregate; 0: the host itself, or nobody
    :ivar load: columns that follow the hosts' use
    :ivar builds: rows of the instances that an overlay assumes of the request
        in progress, where it is for several
    """

    ids: Ints
    numbers: Mapping[str, npt.NDArray[Any]]
    coded: Mapping[str, DictionaryColumn]
    resources: Mapping[str, ResourceColumns]
    topology: Topology
    instances: InstanceIndex
    groups: dict[str, ServerGroup]
    shared: Mapping[str, Ints] = dataclasses.field(default_factory=dict)
    load: LoadColumns = dataclasses.field(default_factory=LoadColumns)
    builds: list[int] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def copy(self, topology: Topology) -> HostTable:
        """Return a copy for another thread, while this one is written to.

        :param topology: memoizes results computed from the copy
        """
        return dataclasses.replace(
            self,
            numbers={name: c.copy() for name, c in self.numbers.items()},
            resources={
                name: dataclasses.replace(columns, used=columns.used.copy())
                for name, columns in self.resources.items()
            },
            topology=topology,
            instances=self.instances.changed(()),
            groups=dict(self.groups),
            load=LoadColumns(),
            builds=None,
        )

    def rows_taken_from(self, row: int, names: Iterable[str]) -> Rows:
        """Return the hosts that have less once a host gives some classes."""
        rows = [np.array([row])]
        for name, provider in self.providers(row, names).items():
            rows.append(self.rows_of_provider(provider, name))
        return rows[0] if len(rows) == 1 else np.unique(np.concatenate(rows))

    def rows_of_provider(self, provider: int, name: str) -> Rows:
        """Return the rows of hosts that an aggregate gives a class."""
        if name not in self.shared:
            return np.empty(0, np.intp)
        return np.flatnonzero(self.shared[name] == provider)

    def groups_of(self, uuids: Iterable[str]) -> dict[str, list[str]]:
        """Return the server groups of instances that are members of some."""
        wanted = set(uuids)
        found: dict[str, list[str]] = {}
        for group in self.groups.values() if wanted else ():
            if not wanted.isdisjoint(group.members):
                for uuid in wanted.intersection(group.members):
                    found.setdefault(uuid, []).append(group.uuid)
        return found

    def find_groups(self, request: Request) -> None:
        """Set the stored server groups of a request's stored instances."""
        stored = self.instances.among(request.instance_uuids)
        request.stored_groups = self.groups_of(stored)

    def groups_for(self, request: Request, policy: str) -> list[ServerGroup]:
        """Return the groups with a policy of the instance to be placed."""
        groups = (self.groups.get(uuid) for uuid in request.groups)
        return [group for group in groups if group and group.policy == policy]

    def load_column(
        self, key: Hashable, source: str, make: Callable[[], Formula]
    ) -> npt.NDArray[Any]:
        """Return a column that follows the hosts' use, [n].

        The column is read-only. See :meth:`LoadColumns.get`.
        """
        return self.load.get(key, (source,), make)

    def count_column(self, name: str) -> Floats:
        """Return a plain column of counts, float64[n], that follows load."""

        def make() -> Formula:
            counts = self.numbers[name]
            return lambda rows: np.float64(counts[rows])

        return self.load_column(('count', name), name, make)

    def providers(self, row: int, names: Iterable[str]) -> dict[str, int]:
        """Return the aggregate that gives a host each class; none: left out.

        :return: resource class -> provider
        """
        shared = self.shared
        if not shared:
            return {}
        found = {n: shared[n].item(row) for n in names if n in shared}
        return {name: number for name, number in found.items() if number}

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
        """Return how much of a class may be in use, float64[n].

        See :meth:`ResourceColumns.capacity`.
        """
        default = settings.default_ratio(name)
        return self.topology.memoize(
            ('capacity', name, default),
            lambda: self.resources[name].capacity(default),
        )

    def unused(self, name: str) -> Floats:
        """Return total - used of a class, float64[n]; follows load."""

        def make() -> Formula:
            columns = self.resources[name]
            total, used = columns.total.astype(np.float64), columns.used
            return lambda rows: total[rows] - used[rows]

        return self.load_column(('unused', name), name, make)

    def free_disk_formula(self) -> Formula:
        """Return the formula of free disk in MB; may be negative.

        ``disk_available_least`` is the upper bound where a host reports it.
        """
        disk = self.resources['DISK_GB']
        total, used = disk.total.astype(np.float64), disk.used
        if not self.some_measure_disk():
            return lambda rows: (total[rows] - used[rows]) * 1024.0
        least = self.numbers['disk_available_least']
        return lambda rows: (
            np.fmin(total[rows] - used[rows], least[rows]) * 1024.0
        )

    def free_disk_mb(self) -> Floats:
        """Return free disk in MB, float64[n]; follows load."""
        return self.load_column(
            'free_disk_mb', 'DISK_GB', self.free_disk_formula
        )

    def available(self) -> Mask:
        """Return whether hosts are enabled and up, bool[n]."""

        def make() -> Formula:
            enabled, up = self.numbers['enabled'], self.numbers['up']
            return lambda rows: enabled[rows] & up[rows]

        return self.load_column('available', 'up', make)

    def some_measure_disk(self) -> bool:
        """Whether any host reports ``disk_available_least``."""
        return self.topology.memoize(
            'measured',
            lambda: not np.isnan(self.numbers['disk_available_least']).all(),
        )

    def values_of(self, aggregate_ids: Iterable[int], key: str) -> set[str]:
        """Return the whole metadata values under *key* of some aggregates."""
        values = (
            self.topology.aggregates[aggregate_id].metadata.get(key)
            for aggregate_id in aggregate_ids
        )
        return {value for value in values if value is not None}

    def split_metadata(
        self, aggregate_ids: frozenset[int]
    ) -> Mapping[str, frozenset[str]]:
        """Return metadata of some aggregates, values split at commas."""

        def work() -> Mapping[str, frozenset[str]]:
            values: dict[str, set[str]] = {}
            for aggregate_id in aggregate_ids:
                metadata = self.topology.aggregates[aggregate_id].metadata
                for name, value in metadata.items():
                    parts = (part.strip() for part in value.split(','))
                    values.setdefault(name, set()).update(parts)
            return {name: frozenset(parts) for name, parts in values.items()}

        return self.topology.memoize(('split metadata', aggregate_ids), work)

    def any_aggregate_has(self, key: str, starts: bool = False) -> bool:
        """Return whether any aggregate's metadata has the key.

        :param starts: whether a key that starts like this is enough
        """

        def work() -> bool:
            return any(
                name.startswith(key) if starts else name == key
                for aggregate in self.topology.aggregates.values()
                for name in aggregate.metadata
            )

        return self.topology.memoize(('has key', key, starts), work)

    def by_aggregates(
        self, verdict: Callable[[list[Aggregate]], Any]
    ) -> npt.NDArray[Any]:
        """Return *verdict* of each host's aggregates, [n].

        The predicate runs once per distinct set of aggregates.
        """
        every = self.topology.aggregates
        return self.by_aggregate_ids(
            lambda ids: verdict([every[number] for number in sorted(ids)])
        )

    def by_aggregate_ids(
        self, verdict: Callable[[frozenset[int]], Any]
    ) -> npt.NDArray[Any]:
        """Return *verdict* of the ids of each host's aggregates, [n].

        The predicate runs once per distinct set of aggregates.
        """
        sets = self.coded['aggregate_set']
        return sets.expand(np.array([verdict(v) for v in sets.values]))

    def least_stated(
        self, key: str, default: float, kind: type[float] | type[int]
    ) -> npt.NDArray[Any] | None:
        """Return the least number that the aggregates of each host state, [n].

        See :func:`least_number`.

        :param key: of their metadata
        :return: None: no aggregate has the key
        """
        if not self.any_aggregate_has(key):
            return None

        def of_set(ids: frozenset[int]) -> float:
            return least_number(self.values_of(ids, key), default, kind)

        return self.topology.memoize(
            ('least', key, default), lambda: self.by_aggregate_ids(of_set)
        )

    def rows_of_host(self, host: str) -> Rows:
        """Return the rows of all nodes of a service host, exact case."""
        code = self.coded['host'].code(host)
        if code < 0:
            return np.empty(0, np.intp)
        order, starts = self._host_order()
        return order[starts[code] : starts[code + 1]]

    def rows_of_hosts(self, hosts: Iterable[str]) -> Rows:
        """Return the rows of several service hosts, exact case."""
        rows = [self.rows_of_host(host) for host in hosts]
        return np.concatenate(rows) if rows else np.empty(0, np.intp)

    def lower_hosts(self) -> dict[str, list[str]]:
        """Return service hosts by their lower-case name."""

        def work() -> dict[str, list[str]]:
            by_lower: dict[str, list[str]] = {}
            for name in self.coded['host'].values:
                by_lower.setdefault(name.lower(), []).append(name)
            return by_lower

        return self.topology.memoize('lower', work)

    def row_of_node(self, host: str, node: str) -> int | None:
        """Return the row of one node of one host."""
        for row in self.rows_of_host(host):
            if self.node_at(row) == node:
                return int(row)
        return None

    def rows_of_nodes(self, nodes: Iterable[Sequence[str]]) -> Rows:
        """Return the rows of nodes, given as (service host, node) pairs."""
        rows = (self.row_of_node(host, node) for host, node in nodes)
        return np.array([row for row in rows if row is not None], np.intp)

    def rows_with(self, column: str, value: str) -> Rows:
        """Return the rows where a coded column has the value."""
        coded = self.coded[column]
        return np.flatnonzero(coded.codes == coded.code(value))

    def row_of_id(self, store_id: int) -> int | None:
        """Return the row of a store id."""
        row = int(np.searchsorted(self.ids, store_id))
        if row < len(self.ids) and self.ids[row] == store_id:
            return row
        return None

    def rows_of_ids(self, store_ids: Sequence[int]) -> tuple[Rows, Mask]:
        """Return the rows of those store ids that there are.

        :return: int64[m], and which of the ids these are
        """
        sought = np.array(store_ids, np.int64)
        there = np.isin(sought, self.ids)
        return np.searchsorted(self.ids, sought[there]), there

    def mask_of(self, rows: npt.NDArray[Any] | Sequence[int]) -> Mask:
        """Return bool[n], true at *rows*."""
        mask = np.zeros(len(self), np.bool_)
        mask[np.asarray(rows, np.intp)] = True
        return mask

    def zone_at(self, row: int, default: str) -> str:
        """Return the availability zone of a host: its aggregates' or default.

        Of several zones the first in sorted order.
        """
        sets = self.coded['aggregate_set']

        def work() -> list[str]:
            zones = (
                self.values_of(ids, 'availability_zone') for ids in sets.values
            )
            return [min(filter(None, some), default=default) for some in zones]

        by_set: list[str] = self.topology.memoize(('zones', default), work)
        zone: str = by_set[sets.codes[row]]
        return zone

    def _host_order(self) -> tuple[Rows, Rows]:
        """Rows sorted by service host, and where each host's rows start."""

        def work() -> tuple[Rows, Rows]:
            codes = self.coded['host'].codes
            order = np.argsort(codes, kind='stable')
            host_codes = np.arange(len(self.coded['host'].values) + 1)
            return order, np.searchsorted(codes[order], host_codes)

        return self.topology.memoize('hosts', work)


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """Hosts and pools as of one revision of the store.

    :ivar hosts: the host table
    :ivar pools: pools by id, in the order of their names
    :ivar revision: number of the last change that is included
    :ivar lineage: the token of that change; None where the store had none
    """

    hosts: HostTable
    pools: Mapping[str, Pool]
    revision: int
    lineage: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class MetricColumn:
    """A metric: which hosts report it, bool[n], and its value, float64[n].

    The value is NaN where a host does not report it, or as no number.
    """

    there: npt.NDArray[np.bool_]
    value: npt.NDArray[np.float64]


def metric(table: HostTable, name: str) -> MetricColumn:
    """Return the column of a metric; no host reports an unknown metric.

    A value that is no number is NaN.
    """

    def work() -> MetricColumn:
        reports = decoded(table, 'metrics')
        reported = [_metric_value(report, name) for report in reports.values]
        there = np.array([value is not None for value in reported], np.bool_)
        values = np.array(reported, np.float64)
        return MetricColumn(reports.expand(there), reports.expand(values))

    return table.topology.memoize(('metric', name), work)


def _metric_value(report: Any, name: str) -> float | None:
    """Return the value of a metric in one host's report, None without it."""
    value = None
    for entry in report if isinstance(report, list) else ():
        if isinstance(entry, dict) and entry.get('name') == name:
            try:
                value = float(entry.get('value') or 0.0)
            except (TypeError, ValueError, OverflowError):
                value = math.nan
    return value


def decoded(table: HostTable, name: str) -> DictionaryColumn:
    """Return a column of documents as plain values, not as their text.

    Values are compared by identity of their text, so they need not hash.
    """

    def work() -> DictionaryColumn:
        column = table.coded[name]
        values = tuple(
            None if text is None else msgspec.json.decode(text)
            for text in column.values
        )
        return DictionaryColumn(column.codes, values)

    return table.topology.memoize(('decoded', name), work)
