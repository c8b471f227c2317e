"""Changes of a host table: all that writes to one is here.

Others' changes come as an :class:`Update`, this daemon's own releases as a
:class:`Release`, and what a batch assumes before its claim by an
:class:`Overlay`. The engine's thread alone has the newest table. It is written
in place, so nothing is copied however many hosts there are; other threads read
copies.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from scheduler_service.columns.build import with_aggregates, with_hosts
from scheduler_service.columns.dictionary import Rows
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.columns.load import Index
from scheduler_service.columns.table import HostTable
from scheduler_service.model import Aggregate, Host, ServerGroup

# From this number of builds on, counting all at once is faster than each.
_FEW = 8


class Update(msgspec.Struct, array_like=True, omit_defaults=True):
    """What others changed, as it was read from the store.

    :cvar kind: of entry in recordings
    :ivar instances: that were added or changed
    :ivar instances_gone: uuids of those that are nowhere
    :ivar hosts: (store id, document) of those added or changed as a whole
    :ivar hosts_gone: store ids
    :ivar aggregates: all there are; None: none changed
    :ivar loaded: store ids of the hosts of which the use changed
    :ivar numbers: plain column -> its value for each of these
    :ivar used: resource class -> what is used of each of these; -1: it does
        not offer the class
    :ivar shared: (provider, resource class, used) of what aggregates offer
    """

    kind: ClassVar[int] = 3

    instances: list[PlacedInstance] = []
    instances_gone: list[str] = []
    groups: list[ServerGroup] = []
    groups_gone: list[str] = []
    hosts: list[tuple[int, Host]] = []
    hosts_gone: list[int] = []
    aggregates: list[Aggregate] | None = None
    loaded: list[int] = []
    numbers: dict[str, list[Any]] = {}
    used: dict[str, list[int]] = {}
    shared: list[tuple[int, str, int]] = []

    def apply(self, table: HostTable) -> HostTable:
        """Return the table with the changes, written in place where it can."""
        for placed in self.instances:
            _put_instance(table, placed.uuid, placed)
        for uuid in self.instances_gone:
            _put_instance(table, uuid, None)
        for uuid in self.groups_gone:
            table.groups.pop(uuid, None)
        for group in self.groups:
            table.groups[group.uuid] = group
        if self.hosts or self.hosts_gone:
            table = with_hosts(table, self.hosts, self.hosts_gone)
        if self.aggregates is not None:
            table = with_aggregates(table, self.aggregates)
        if self.loaded:
            self._set_load(table)
        for provider, name, used in self.shared:
            _take_of_aggregate(table, provider, name, used, is_all=True)
        return table

    def _set_load(self, table: HostTable) -> None:
        """Write new figures of use, of the hosts that there are."""
        rows, at = table.rows_of_ids(self.loaded)
        for name, values in self.numbers.items():
            table.numbers[name][rows] = np.array(values)[at]
        for name in self.used.keys() & table.resources.keys():
            used = np.array(self.used[name])[at]
            offered = used >= 0
            table.resources[name].used[rows[offered]] = used[offered]
        least = self.numbers.get('disk_available_least', np.nan)
        if not table.some_measure_disk() and not np.isnan(least).all():
            # The first host that measures its disk: other formulas hold.
            table.topology.forget('measured')
            table.load.clear()
        for source in (*table.resources, *self.numbers):
            table.load.refresh(source, rows)
        table.load.changes.add(rows)


class Release(msgspec.Struct):
    """Claims that this daemon released.

    :ivar claims: (consumer, its service host and node, host id -> resource
        class -> amount of its allocations); no service host: it was no
        instance that had a claim
    :ivar moved: instances of which a move was released
    :ivar members: (group, instance) of each membership that ended
    """

    kind: ClassVar[int] = 4

    claims: list[tuple[str, str | None, str | None, dict[int, dict[str, int]]]]
    moved: list[str]
    members: list[tuple[str, str]]

    def apply(self, table: HostTable) -> bool:
        """Take the claims out of the table.

        Those of instances that it lacks, and moves, stay.

        :return: whether none stays
        """
        complete = not self.moved
        for uuid, host, node, amounts in self.claims:
            for host_id, held in amounts.items():
                if host_id < 0:
                    for name, amount in held.items():
                        _take_of_aggregate(table, host_id, name, -amount)
            if host is None or node is None:
                continue
            placed = table.instances.get(uuid)
            row = table.row_of_node(host, node)
            if row is None or placed is None or placed.host != host:
                complete = False
                continue
            held = amounts.get(table.ids.item(row), {})
            # What the host does not offer any more, and its aggregate does.
            shared = table.providers(row, held)
            held = {name: held[name] for name in held.keys() - shared}
            _add_use(table, row, held, -1)
            _put_instance(table, uuid, None)
        for group_uuid, uuid in self.members:
            group = table.groups.get(group_uuid)
            if group is not None:
                members = [other for other in group.members if other != uuid]
                table.groups[group_uuid] = msgspec.structs.replace(
                    group, members=members
                )
        return complete


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
    :ivar lent: rows, and amounts that do not count on them at present
    """

    def __init__(self, table: HostTable) -> None:
        self.table = table
        self._assumed: list[_Assumed] = []
        self.lent: tuple[Rows, Mapping[str, int]] | None = None

    @property
    def assumes(self) -> bool:
        """Whether anything is assumed."""
        return bool(self._assumed)

    def lend(self, rows: Rows, amounts: Mapping[str, int]) -> None:
        """Have amounts of hosts not count, until :meth:`take_back`."""
        _add_use(self.table, rows, amounts, -1)
        self.lent = rows, amounts

    def take_back(self) -> None:
        """Have what was lent count again, if anything was."""
        if self.lent is not None:
            _add_use(self.table, *self.lent, 1)
            self.lent = None

    def take(
        self, rows: Index, amounts: Mapping[str, int], count: Any
    ) -> None:
        """Count instances without a uuid, of which none is forgotten.

        :param rows: a row, or int64[m] different rows
        :param amounts: resource class -> what each instance takes
        :param count: of the instances: one number, or int64[m]
        """
        _add_use(self.table, rows, amounts, count)

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
        before = _put_instance(table, placed.uuid, placed)
        self._assumed.append(
            _Assumed(row, amounts, placed.uuid, before, joined)
        )
        _add_use(table, row, amounts, 1)
        if table.builds is not None:
            self._count_build(row, 1)
            table.builds.append(row)

    def assume_pod(self, row: int, amounts: Mapping[str, int]) -> None:
        """Have a pod take *amounts* of the host of *row*."""
        self._assumed.append(_Assumed(row, amounts, '', None, None))
        _take(self.table, row, amounts, 1)

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
            before = _put_instance(table, instance.uuid, instance)
            self._assumed.append(
                _Assumed(row, amounts, instance.uuid, before, joined)
            )
        _count_use(table, rows, amounts, 1)
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
                _take(table, pod.row, pod.amounts, -1)
            gone = [assumed for assumed in gone if assumed.uuid]
        for assumed in reversed(gone):
            _put_instance(table, assumed.uuid, assumed.before)
            if assumed.group is not None:
                table.groups[assumed.group.uuid] = assumed.group
        for amounts, some in itertools.groupby(
            gone, lambda assumed: assumed.amounts
        ):
            _count_use(table, [assumed.row for assumed in some], amounts, -1)
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


def _count_use(
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
    _add_use(table, at, amounts, counts)


def _add_use(
    table: HostTable, rows: Index, amounts: Mapping[str, int], count: Any
) -> None:
    """Count instances more, or less where *count* is negative.

    :param rows: a row, or int64[m] different rows
    :param amounts: resource class -> what each instance takes
    :param count: of the instances: one number, or int64[m]
    """
    table.numbers['num_instances'][rows] += count
    table.load.refresh('num_instances', rows)
    _take(table, rows, amounts, count)


def _take(
    table: HostTable, rows: Index, amounts: Mapping[str, int], count: Any
) -> None:
    """Count what pods take, which are no instances; see above."""
    for name, amount in amounts.items():
        if name in table.shared:
            _take_shared(table, rows, name, count * amount)
        else:
            table.resources[name].used[rows] += count * amount
    disk = amounts.get('DISK_GB')
    if disk:
        table.numbers['disk_available_least'][rows] -= count * disk
    for name in amounts:
        table.load.refresh(name, rows)
    table.load.changes.add(rows)


def _take_shared(
    table: HostTable, rows: Index, name: str, amounts: Any
) -> None:
    """Count what some hosts take of a class that aggregates offer."""
    some, each = np.broadcast_arrays(np.atleast_1d(rows), amounts)
    for row, amount in zip(some.tolist(), each.tolist(), strict=True):
        provider = table.shared[name].item(row)
        if provider:
            _take_of_aggregate(table, provider, name, amount)
        else:
            table.resources[name].used[row] += amount


def _take_of_aggregate(
    table: HostTable,
    provider: int,
    name: str,
    amount: int,
    is_all: bool = False,
) -> None:
    """Count what is taken of an aggregate, for all hosts that it gives to.

    :param is_all: whether it is all that is used; false: so much more
    """
    rows = table.rows_of_provider(provider, name)
    if len(rows):
        used = table.resources[name].used
        used[rows] = amount if is_all else used[rows] + amount
        table.load.refresh(name, rows)
        table.load.changes.add(rows)


def _put_instance(
    table: HostTable, uuid: str, placed: PlacedInstance | None
) -> PlacedInstance | None:
    """Put an instance on its host; None: remove the instance.

    :return: where it was; None: it was not there
    """
    before = table.instances.put(uuid, placed)
    if table.load.follows('instances'):
        hosts = {item.host for item in (before, placed) if item is not None}
        rows = table.rows_of_hosts(hosts)
        table.load.refresh('instances', rows)
        table.load.changes.add(rows)
    return before
