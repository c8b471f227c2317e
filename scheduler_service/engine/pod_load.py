"""Scores and room of nodes by what pods use on them.

Stateless but for the options; on tables of the caller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from scheduler_service.columns import HostTable
from scheduler_service.columns.dictionary import Floats, Rows
from scheduler_service.engine.pod_use import PodUse
from scheduler_service.extender.usage import Usage
from scheduler_service.filters.base import figure
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
    :ivar stretched: whether the best node of a call always has 10 and the
        worst always 0
    """

    multipliers: dict[str, float]
    stretched: bool = False

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
        total: Floats | None = None
        weight = 0.0
        for name, multiplier in self.multipliers.items():
            asked = asking.usage.load[name]
            if not multiplier or asked <= 0.0:
                continue
            size = _joined(
                [
                    one.table.capacity(name, settings).take(one.rows)
                    for one in parts
                ]
            )
            used = _joined([_used(use, one, asking, name) for one in parts])
            part = _behind(used, size, multiplier > 0.0)
            if part is None:
                continue
            part *= abs(multiplier) / asked
            total = part if total is None else total + part
            weight += abs(multiplier)
        return None if total is None else total / weight

    def scores(
        self, distances: Floats | None, weights: Floats, lead: bool = False
    ) -> list[int]:
        """Return scores of 0 to 10; all 0 where nobody differs.

        :param distances: of :meth:`distances`; None: load does not count
        :param weights: sums of multiplier x normalised weight of the
            weighers that do not look at load
        :param lead: whether one node is to be ahead of those that are equal
            to it: a kube-scheduler takes it then, and so it is known at once
            where the pod goes, long before the pod is seen there
        """
        if not len(weights):
            return []
        points = MAX_SCORE * (weights.max() - weights)
        if distances is not None:
            # Twice as many pods: one point more. So the difference of one
            # pod still counts beside that of a thousand.
            points += np.log2(distances + 1.0)
        if self.stretched:
            return _stretched(points)
        points -= points.min()
        if distances is not None and lead:
            scores = _points(points, MAX_SCORE - 1)
            scores[int(points.argmin())] = MAX_SCORE
            return scores
        if points.max() <= 0.0:
            return [0] * len(weights)
        return _points(points, MAX_SCORE)


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
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _points(lost: Floats, best: int) -> list[int]:
    """Return scores from *best* down to 0, rounded down."""
    scores = np.maximum(best + _ROUNDING - lost, 0.0)
    found: list[int] = scores.astype(np.int64).tolist()
    return found


def _stretched(lost: Floats) -> list[int]:
    """Return scores from 10 down to 0, rounded half up."""
    low, high = lost.min(), lost.max()
    if high <= low:
        return [0] * len(lost)
    scores = MAX_SCORE * (high - lost) / (high - low) + 0.5
    found: list[int] = scores.astype(np.int64).tolist()
    return found


def _used(use: PodUse, sent: NodeRows, asking: Asking, name: str) -> Floats:
    """Return what is used of a class, by pods and others, float64[m]."""
    columns = sent.table.resources.get(name)
    if columns is None:
        return np.zeros(len(sent.rows))
    used = use.used(name, sent.numbers, asking.uid)
    used += columns.used.take(sent.rows)
    return used


def shortages(use: PodUse, sent: NodeRows, asking: Asking) -> dict[int, str]:
    """Return index -> reason, for nodes without room for the pod.

    That is room for each of its extended resources.
    """
    asked = asking.usage.classes
    left = {name: free(use, sent, asking, name) for name in asked}
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


def free(use: PodUse, sent: NodeRows, asking: Asking, name: str) -> Floats:
    """Return what is free of a class beside what pods use, float64[m]."""
    columns = sent.table.resources.get(name)
    if columns is None:
        return np.full(len(sent.rows), -1.0)
    ratio = np.nan_to_num(columns.ratio[sent.rows], nan=1.0)
    size = (columns.total[sent.rows] - columns.reserved[sent.rows]) * ratio
    left: Floats = size - _used(use, sent, asking, name)
    return left
