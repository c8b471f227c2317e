"""Scores and room of nodes by what pods use on them.

Stateless but for the options; on tables of the caller.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from scheduler_service.columns import HostTable
from scheduler_service.columns.dictionary import Floats, Ints, Rows
from scheduler_service.filters.base import figure
from scheduler_service.kube.pod_use import PodUse
from scheduler_service.kube.usage import Usage
from scheduler_service.model import STANDARD_CLASSES
from scheduler_service.settings import Settings

MAX_SCORE = 10
# A score this little below a whole one is that one.
_ROUNDING = 1e-6


class NodeRows(NamedTuple):
    """Nodes of a call that are rows of one table.

    :ivar rows: int64[m], of the table
    :ivar numbers: int64[m], of :class:`PodUse`
    """

    table: HostTable
    rows: Rows
    numbers: Rows


class Asking(NamedTuple):
    """The pod that a call is about; its own use does not count."""

    uid: str
    usage: Usage


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
        asking: Asking,
        settings: Settings,
    ) -> Floats | None:
        """Return how many such pods each node is behind the best, float64[m].

        The best is the one of which the smallest share is used: two nodes of
        different size are as good as each other where the same share is.
        None: load does not count for this pod.

        :param parts: nodes of the call, which are in several tables
        """
        weighed = _weighed(
            tuple(self.multipliers.items()),
            tuple(map(asking.usage.load.__getitem__, STANDARD_CLASSES)),
        )
        if not weighed.classes:
            return None
        sizes_of = [_sizes(one.table, settings) for one in parts]
        sizes = _joined(
            [
                known.sizes.take(one.rows, axis=1)
                for known, one in zip(sizes_of, parts, strict=True)
            ]
        )
        used = _joined([_load(use, one, asking.uid) for one in parts])
        if weighed.all_spread and all(one.all_sized for one in sizes_of):
            return _all_behind(used, sizes, weighed.factors)
        total: Floats | None = None
        weight = 0.0
        for number, multiplier, amount in weighed.classes:
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
        """Return scores of 0 to 10, int64[m]; all 0 where nobody differs.

        :param distances: of :meth:`distances`; None: load does not count
        :param weights: sums of multiplier x normalised weight of the
            weighers that do not look at load; None: these say nothing of
            any node, which *distances* then do
        :param lead: whether one node is to be ahead of those that are equal
            to it: a kube-scheduler takes it then, and so it is known at once
            where the pod goes, long before the pod is seen there
        """
        if weights is not None and not len(weights):
            return np.zeros(0, np.int64)
        points = None
        if distances is not None:
            # Twice as many pods: one point more. So the difference of one
            # pod still counts beside that of a thousand.
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


class _Weighed(NamedTuple):
    """The classes that count for a pod.

    :ivar classes: number of each, its multiplier, and the amount asked
    :ivar all_spread: whether all multipliers are above 0
    :ivar factors: of what a node is behind in each standard class, float64[3]
    """

    classes: list[tuple[int, float, float]]
    all_spread: bool
    factors: Floats


@functools.lru_cache(4096)
def _weighed(
    multipliers: tuple[tuple[str, float], ...], asked: tuple[float, ...]
) -> _Weighed:
    """Return the classes that count.

    :param multipliers: by class
    :param asked: of each standard class
    """
    by_class = dict(multipliers)
    classes = [
        (number, by_class[name], amount)
        for number, (name, amount) in enumerate(
            zip(STANDARD_CLASSES, asked, strict=True)
        )
        if by_class.get(name) and amount > 0.0
    ]
    weight = sum(abs(multiplier) for _, multiplier, _ in classes)
    factors = np.zeros(len(STANDARD_CLASSES))
    for number, multiplier, amount in classes:
        factors[number] = multiplier / amount / weight
    all_spread = all(multiplier > 0.0 for _, multiplier, _ in classes)
    return _Weighed(classes, all_spread, factors)


def _all_behind(used: Floats, sizes: Floats, factors: Floats) -> Floats:
    """Return what :func:`_behind` says, of all classes at once, float64[m].

    :param used: float64[3, m], as *sizes*; every node has some of each class
    """
    shares = used / sizes
    shares -= np.minimum.reduce(shares, axis=1, keepdims=True)
    shares *= sizes
    behind: Floats = factors @ shares
    return behind


def _behind(used: Floats, size: Floats, spread: bool) -> Floats | None:
    """Return how much of its size each node is behind the best, float64[m].

    None where no node has any. One that has none is behind all others.
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


def _joined(arrays: list[Floats]) -> Floats:
    """Return arrays [3, m] as one."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1)


def _points(lost: Floats, best: float) -> Ints:
    """Return what is left of *best*, from 0 on, rounded down."""
    scores = (best + _ROUNDING) - lost
    np.maximum(scores, 0.0, out=scores)
    found: Ints = scores.astype(np.int64)
    return found


class _Sizes(NamedTuple):
    """What the nodes of a table have of each standard class.

    :ivar sizes: float64[3, n]
    :ivar all_sized: whether every node has some of each
    """

    sizes: Floats
    all_sized: bool


def _sizes(table: HostTable, settings: Settings) -> _Sizes:
    def work() -> _Sizes:
        sizes = np.stack(
            [table.capacity(name, settings) for name in STANDARD_CLASSES]
        )
        return _Sizes(sizes, bool((sizes > 0.0).all()))

    # All of the settings that it follows from.
    key = (
        'sizes',
        settings.cpu_allocation_ratio,
        settings.ram_allocation_ratio,
        settings.disk_allocation_ratio,
    )
    found: _Sizes = table.topology.memoize(key, work)
    return found


def _load(use: PodUse, sent: NodeRows, uid: str) -> Floats:
    """Return what is used of each standard class, float64[3, m].

    By pods but for one, and by others.
    """
    used = use.load(sent.numbers, uid)
    others: Floats | None = sent.table.load.memoize(
        'use of hosts', lambda: _use_of_hosts(sent.table)
    )
    if others is not None:
        used += others.take(sent.rows, axis=1)
    return used


def _use_of_hosts(table: HostTable) -> Floats | None:
    """Return what others than pods use, float64[3, n]; None: nothing."""
    used = np.zeros((len(STANDARD_CLASSES), len(table)))
    for row, name in zip(used, STANDARD_CLASSES, strict=True):
        columns = table.resources.get(name)
        if columns is not None:
            row += columns.used
    return used if used.any() else None


def shortages(
    use: PodUse, sent: NodeRows, asking: Asking, with_assumed: bool
) -> dict[int, str]:
    """Return index -> reason, for nodes without room for the pod.

    That is room for each of its extended resources.

    :param with_assumed: whether pods take room that are only assumed
    """
    asked = asking.usage.classes
    left = {
        name: _free(sent, name, use.used(
            name, sent.numbers, asking.uid, with_assumed
        ))
        for name in asked
    }  # fmt: skip
    full = np.zeros(len(sent.rows), np.bool_)
    for name, amount in asked.items():
        full |= left[name] < amount
    # Most nodes lack the same.
    texts: dict[tuple[float, ...], str] = {}
    reasons: dict[int, str] = {}
    for at in np.flatnonzero(full).tolist():
        key = tuple(float(one[at]) for one in left.values())
        if key not in texts:
            texts[key] = _shortage(asked, key)
        reasons[at] = texts[key]
    return reasons


def _shortage(asked: Mapping[str, int], left: Sequence[float]) -> str:
    """Return what a node lacks, in words.

    :param left: what is free of each class, in the same order
    """
    return '; '.join(
        f'{amount} {name} asked, {figure(max(0.0, free))} free'
        for (name, amount), free in zip(asked.items(), left, strict=True)
        if free < amount
    )


def _free(sent: NodeRows, name: str, used: Floats) -> Floats:
    """Return what is free of a class, float64[m].

    :param used: what pods use of it, float64[m]
    """
    columns = sent.table.resources.get(name)
    if columns is None:
        return np.full(len(sent.rows), -1.0)
    ratio = np.nan_to_num(columns.ratio[sent.rows], nan=1.0)
    size = (columns.total[sent.rows] - columns.reserved[sent.rows]) * ratio
    left: Floats = size - used - columns.used[sent.rows]
    return left
