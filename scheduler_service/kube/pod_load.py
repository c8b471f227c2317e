"""Scores, free resources and filters of nodes, by what pods use on them.

Stateless but for the options; works on tables of the caller.

The filters apply to a kube-scheduler's pods alone. It checks processors,
memory, storage, the number of pods, and the state and taints of nodes itself
before it calls. It skips extended resources that it was configured to ignore,
and does not say which: so those of ``[kubernetes] managed_resources``, by
default those that some host offers, are checked by a filter against the size
of hosts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from scheduler_service.columns import HostTable
from scheduler_service.columns.dictionary import Floats, Ints, Mask, Rows
from scheduler_service.columns.load import Formula
from scheduler_service.columns.topology import Key
from scheduler_service.filters.base import Comparison, HostFilter
from scheduler_service.filters.capacity import (
    CapacityFilter,
    CountFilter,
    used_of_aggregate,
)
from scheduler_service.filters.hosts.compute_filter import ComputeFilter
from scheduler_service.kube.node_reader import is_checked_by_scheduler
from scheduler_service.kube.pod_reader import PARTS, PodUsage, parts_of
from scheduler_service.kube.pod_use import PodUse
from scheduler_service.model import STANDARD_CLASSES, Request
from scheduler_service.settings import Settings
from scheduler_service.texts import figure

MAX_SCORE = 10
# A score this little below a whole number counts as that number.
_ROUNDING = 1e-6
# Filters that depend on load, which changes as pods come and go.
_MAY_PASS_LATER = frozenset(
    (
        'RetryFilter',
        'MetricsFilter',
        'ServerGroupAffinityFilter',
        'ServerGroupAntiAffinityFilter',
        'GroupAffinityFilter',
        'GroupAntiAffinityFilter',
        'DifferentHostFilter',
        'SameHostFilter',
        'TypeAffinityFilter',
    )
)


class NodeRows(NamedTuple):
    """Nodes of a call that are rows of one table.

    :ivar rows: int64[m], of the table
    :ivar every: int64[n], the numbers of all its nodes in :class:`PodUse`
    """

    table: HostTable
    rows: Rows
    every: Rows

    @property
    def numbers(self) -> Rows:
        """The numbers of the nodes of the call, int64[m]."""
        return self.every.take(self.rows)


class PodDemand(NamedTuple):
    """The pod of a call; its own use does not count.

    :ivar priority: nominated pods of a lower one take nothing from it
    """

    uid: str
    usage: PodUsage
    priority: float


class _Wanted(NamedTuple):
    """An amount that a pod requests.

    :ivar key: under which pods on a node are counted
    :ivar amount: in parts
    :ivar unit: how many parts are one of the class
    """

    key: str
    amount: int
    unit: int


@dataclasses.dataclass(frozen=True, slots=True)
class LoadScoring:
    """How much the load of nodes matters.

    :ivar multipliers: of VCPU, MEMORY_MB and DISK_GB; above 0 the least
        loaded node is the best, below 0 the most loaded
    """

    multipliers: dict[str, float]

    def distances(
        self,
        use: PodUse,
        parts: Sequence[NodeRows],
        demand: PodDemand,
        settings: Settings,
    ) -> Floats | None:
        """Return how many such pods each node is behind the best, float64[m].

        The best node has the smallest used share: nodes of different size are
        equal where the same share is used. None: load does not count for this
        pod.

        :param parts: nodes of the call, by table
        """
        load = demand.usage.load
        classes = [
            (number, multiplier, load[name])
            for number, name in enumerate(STANDARD_CLASSES)
            if (multiplier := self.multipliers.get(name)) and load[name] > 0.0
        ]
        if not classes:
            return None
        sizes_of = [_sizes(nodes.table, settings) for nodes in parts]
        sizes = _concatenated(
            [
                of_table.sizes.take(nodes.rows, axis=1)
                for of_table, nodes in zip(sizes_of, parts, strict=True)
            ]
        )
        used = _concatenated(
            [_load(use, nodes, demand.uid) for nodes in parts]
        )
        weight = 0.0
        if all(of_table.all_sized for of_table in sizes_of) and all(
            multiplier > 0.0 for _, multiplier, _ in classes
        ):
            # The same as below, of all classes at once.
            factors = np.zeros(len(STANDARD_CLASSES))
            for number, multiplier, amount in classes:
                factors[number] = multiplier / amount
                weight += multiplier
            factors /= weight
            shares = used / sizes
            shares -= np.minimum.reduce(shares, axis=1, keepdims=True)
            shares *= sizes
            return factors @ shares
        total: Floats | None = None
        for number, multiplier, amount in classes:
            part = _behind(used[number], sizes[number], multiplier > 0.0)
            if part is None:
                continue
            part *= abs(multiplier) / amount
            total = part if total is None else total + part
            weight += abs(multiplier)
        return None if total is None else total / weight

    def scores(
        self,
        distances: Floats | None,
        weights: Floats | None,
        lead: bool = False,
    ) -> Ints:
        """Return scores of 0 to 10, int64[m]; all 0 where all nodes are equal.

        :param distances: of :meth:`distances`; None: load does not count
        :param weights: sums of multiplier x normalised weight of the
            weighers that do not depend on load; None: there are none, and
            *distances* are given
        :param lead: whether one node is to be ahead of its equals, so that
            the kube-scheduler takes it, and the pod's node is clear long
            before the pod is seen there
        """
        if weights is not None and not len(weights):
            return np.zeros(0, np.int64)
        points = None
        if distances is not None:
            # Twice as many pods are one point more, so that a difference of
            # one pod still counts beside one of a thousand.
            points = np.log2(distances + 1.0)
        if weights is not None and (points is None or weights.any()):
            lost = MAX_SCORE * (weights.max() - weights)
            points = lost if points is None else points + lost
        assert points is not None
        first = int(points.argmin())
        least = float(points[first])
        if distances is not None and lead:
            scores = _points(points, least + MAX_SCORE - 1)
            scores[first] = MAX_SCORE
            return scores
        if points.max() <= least:
            return np.zeros(len(points), np.int64)
        return _points(points, least + MAX_SCORE)


def _behind(used: Floats, size: Floats, spread: bool) -> Floats | None:
    """Return how much of its size each node is behind the best, float64[m].

    None where no node has the class. A node without it is behind all others.
    """
    sized = size > 0.0
    if not sized.any():
        return None
    if sized.all():
        shares = used / size
        best = shares.min() if spread else shares.max()
        behind: Floats = np.abs(shares - best) * size
        return behind
    behind = np.empty(len(size))
    some = _behind(used[sized], size[sized], spread)
    assert some is not None
    behind[sized] = some
    behind[~sized] = some.max() + size.max()
    return behind


def _concatenated(arrays: list[Floats]) -> Floats:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1)


def _points(lost: Floats, best: float) -> Ints:
    scores = (best + _ROUNDING) - lost
    np.maximum(scores, 0.0, out=scores)
    return scores.astype(np.int64)


class _Sizes(NamedTuple):
    """Capacity of the nodes of a table, by standard class.

    :ivar sizes: float64[3, n]
    :ivar all_sized: whether every node has some of each class
    """

    sizes: Floats
    all_sized: bool


def _sizes(table: HostTable, settings: Settings) -> _Sizes:
    def compute() -> _Sizes:
        sizes = np.stack(
            [table.capacity(name, settings) for name in STANDARD_CLASSES]
        )
        return _Sizes(sizes, bool((sizes > 0.0).all()))

    # All settings that the sizes depend on.
    key = (
        'sizes',
        settings.cpu_allocation_ratio,
        settings.ram_allocation_ratio,
        settings.disk_allocation_ratio,
    )
    return table.topology.memoize(key, compute)


def _load(use: PodUse, sent: NodeRows, uid: str) -> Floats:
    """Return what is used of each standard class, float64[3, m].

    :param uid: of a pod that does not count
    """
    used = use.load(sent.numbers, uid)
    host_use: Floats | None = sent.table.load.memoize(
        'use of hosts', lambda: _use_of_hosts(sent.table)
    )
    if host_use is not None:
        others = host_use.take(sent.rows, axis=1)
        for row, name in zip(others, STANDARD_CLASSES, strict=True):
            # Of pods that are seen, the book has these amounts as well.
            if parts_of(name) in use:
                parts = use.used(parts_of(name), sent.numbers)
                row -= np.minimum(row, np.ceil(parts / PARTS[name]))
        used += others
    return used


def _use_of_hosts(table: HostTable) -> Floats | None:
    """Return the use recorded for hosts, float64[3, n]; None: all 0."""
    used = np.zeros((len(STANDARD_CLASSES), len(table)))
    for row, name in zip(used, STANDARD_CLASSES, strict=True):
        columns = table.resources.get(name)
        if columns is not None:
            row += columns.used
    return used if used.any() else None


def shortages(
    use: PodUse,
    sent: NodeRows,
    demand: PodDemand,
    booked: bool,
    of_aggregates: bool,
) -> dict[int, str]:
    """Return index -> reason, for nodes with too little free for the pod.

    Its extended resources count, and all others where hosts are shared with
    instances.

    :param booked: whether the use of hosts includes that of pods
    :param of_aggregates: whether the use of aggregates does
    """
    wanted = {
        name: _Wanted(name, amount, 1)
        for name, amount in demand.usage.classes.items()
    }
    for name, amount in demand.usage.parts.items():
        wanted[name] = _Wanted(parts_of(name), amount, PARTS[name])
    free_amounts = {
        name: _free(
            use,
            sent,
            demand,
            name,
            one,
            booked or (of_aggregates and name in sent.table.shared),
        )
        for name, one in wanted.items()
    }
    full = np.zeros(len(sent.rows), np.bool_)
    for name, one in wanted.items():
        full |= free_amounts[name] < one.amount
    # Most nodes lack the same.
    texts: dict[tuple[tuple[float, str], ...], str] = {}
    reasons: dict[int, str] = {}
    for at in np.flatnonzero(full).tolist():
        key = tuple(
            (float(free[at]), _used_of_aggregate(sent, at, name, free))
            for name, free in free_amounts.items()
        )
        if key not in texts:
            texts[key] = _shortage(wanted, key)
        reasons[at] = texts[key]
    return reasons


def _used_of_aggregate(
    sent: NodeRows, at: int, name: str, free: Floats
) -> str:
    if name not in sent.table.shared:
        return ''
    columns, row = sent.table.resources[name], int(sent.rows[at])
    size = float(columns.total[row] - columns.reserved[row])
    return used_of_aggregate(sent.table, row, name, size, free[at])


def _shortage(
    wanted: Mapping[str, _Wanted], left: Sequence[tuple[float, str]]
) -> str:
    return '; '.join(
        f'{figure(amount / unit)} {name} requested, '
        + (used or f'{figure(max(0.0, free / unit))} free')
        for (name, (_, amount, unit)), (free, used) in zip(
            wanted.items(), left, strict=True
        )
        if free < amount
    )


def _free(
    use: PodUse,
    sent: NodeRows,
    demand: PodDemand,
    name: str,
    wanted: _Wanted,
    booked: bool,
) -> Floats:
    """Return how many parts of a class nodes have left, float64[m].

    The book and this daemon's watch know of most pods both: what the book has
    beyond the pods that were seen belongs to others.
    """
    columns = sent.table.resources.get(name)
    if columns is None:
        return np.full(len(sent.rows), -1.0)
    key, _, unit = wanted
    total = (columns.total - columns.reserved)[sent.rows]
    size, others = total.astype(float), columns.used[sent.rows].astype(float)
    every = sent.every
    if booked:
        pods = use.used(key, every) + use.left(key, every)
        pods = np.ceil(_where_offered(sent, name, pods) / unit)
        others = np.maximum(others - pods, 0.0)
    else:
        size *= np.nan_to_num(columns.ratio[sent.rows], nan=1.0)
    own = use.used(key, every, demand.uid, demand.priority)
    available: Floats = (size - others) * unit - _where_offered(
        sent, name, own
    )
    return available


def _where_offered(sent: NodeRows, name: str, amounts: Floats) -> Floats:
    """Return what pods have of a class where the nodes get it, float64[m].

    What an aggregate offers, pods on all of its nodes have together.

    :param amounts: float64[n], by node
    """
    providers = sent.table.shared.get(name)
    if providers is not None:
        _, at = np.unique(providers, return_inverse=True)
        together = np.bincount(at, amounts)[at]
        amounts = np.where(providers == 0, amounts, together)
    return amounts.take(sent.rows)


class PodComputeFilter(ComputeFilter):
    """Leaves hosts that no operator of this service disabled.

    Agents have to run on nodes that are cordoned or not ready yet: a
    kube-scheduler has checked each pod's tolerations.
    """

    name = 'ComputeFilter'

    def comparisons(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Sequence[Comparison]:
        """Compare the column of hosts that no operator disabled here."""

        def make() -> Formula:
            enabled = table.number('enabled')
            checked = table.coded['disabled_reason'].mask_where(
                is_checked_by_scheduler
            )
            return lambda rows: enabled[rows] | checked[rows]

        column = table.load_column('enabled for pods', 'enabled', make)
        return (Comparison(column, np.equal, True),)


class OfferedResources(HostFilter):
    """Leaves hosts that are large enough for each extended resource.

    Use does not count: no eviction helps a host that is too small.
    """

    name = 'offered_resources'
    once = True

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the classes with the requested amounts."""
        amounts = _extended(request)
        return frozenset(amounts.items()) if amounts else None

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask:
        """Compare the size of hosts, and the bounds of single amounts."""
        fits = np.ones(len(table), np.bool_)
        for name, amount in _extended(request).items():
            fits &= _size(table, name, settings) >= amount
            columns = table.resources.get(name)
            if columns is not None:
                fits &= columns.min_unit <= amount
                fits &= columns.max_unit >= amount
                fits &= amount % columns.step_size == 0
        return fits

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Name the classes with the figures."""
        reasons = []
        for name, amount in _extended(request).items():
            size = float(max(0.0, _size(table, name, settings)[row]))
            if size < amount:
                reasons.append(
                    f'{amount} {name} requested, {figure(size)} offered'
                )
        return (
            '; '.join(reasons)
            or 'the amount is outside min_unit, max_unit and step_size'
        )


def _extended(request: Request) -> dict[str, int]:
    return {
        name: amount
        for name, amount in request.resources.items()
        if name not in STANDARD_CLASSES
    }


def _size(table: HostTable, name: str, settings: Settings) -> Floats:
    """Return what hosts offer of a class, float64[n]; -1: not offered."""
    columns = table.resources.get(name)
    if columns is None:
        return np.full(len(table), -1.0)
    return np.where(columns.total < 0, -1.0, table.capacity(name, settings))


def may_pass_later(host_filter: HostFilter) -> bool:
    """Whether a filter depends on load, so that evicting pods may help."""
    return (
        isinstance(host_filter, CapacityFilter | CountFilter)
        or host_filter.name in _MAY_PASS_LATER
    )
