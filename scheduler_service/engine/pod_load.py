"""Scores and room of nodes by what pods use on them.

Stateless but for the options; on tables of the caller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scheduler_service.columns import HostTable
from scheduler_service.columns.dictionary import Floats, Mask, Rows
from scheduler_service.engine.pod_use import PodUse
from scheduler_service.extender.usage import Usage
from scheduler_service.filters.base import figure
from scheduler_service.settings import Settings

MAX_SCORE = 10
# A score this little below a whole one is that one.
_ROUNDING = 1e-6


class Sent(NamedTuple):
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
        parts: Sequence[Sent],
        asking: Asking,
        settings: Settings,
    ) -> Floats | None:
        """Return how many such pods each node is behind the best, float64[m].

        By the share of the node that is used: two nodes of different size
        are as good as each other where the same share is. None: load does
        not count for this pod.

        :param parts: nodes of the call, which are in several tables
        """
        total: Floats | None = None
        weight = 0.0
        for name, multiplier in self.multipliers.items():
            asked = asking.usage.load[name]
            if not multiplier or asked <= 0.0:
                continue
            size = np.concatenate(
                [one.table.capacity(name, settings)[one.rows] for one in parts]
            )
            sized = size > 0.0
            if not sized.any():
                continue
            used = np.concatenate(
                [_used(use, one, asking, name) for one in parts]
            )
            share = np.where(sized, used / np.where(sized, size, 1.0), 1.0)
            one = asked / np.median(size[sized])
            behind = (
                share - share.min() if multiplier > 0 else share.max() - share
            )
            part = abs(multiplier) * behind / one
            total = part if total is None else total + part
            weight += abs(multiplier)
        return None if total is None else total / weight

    def scores(self, distances: Floats | None, weights: Floats) -> list[int]:
        """Return scores of 0 to 10; all 0 where nobody differs.

        :param distances: of :meth:`distances`; None: load does not count
        :param weights: sums of multiplier x normalised weight of the
            weighers that do not look at load
        """
        if not len(weights):
            return []
        behind: Floats = weights.max() - weights
        if distances is not None:
            # Twice as many pods: one point more. So the difference of one
            # pod still counts beside that of a thousand.
            behind = behind + np.log2(1.0 + distances) / MAX_SCORE
        if self.stretched:
            return _stretched(behind)
        if distances is None:
            if behind.max() <= behind.min():
                return [0] * len(behind)
            return _points(behind, MAX_SCORE)
        # One node alone is the best, the first of those that are equal: a
        # kube-scheduler takes it, and so it is known at once where the pod
        # goes, long before the pod is seen there.
        scores = _points(behind, MAX_SCORE - 1)
        scores[int(behind.argmin())] = MAX_SCORE
        return scores


def _points(behind: Floats, best: int) -> list[int]:
    """Return scores from *best* down."""
    scores = np.floor(best - MAX_SCORE * behind + _ROUNDING)
    found: list[int] = np.clip(scores, 0, best).astype(np.int64).tolist()
    return found


def _stretched(behind: Floats) -> list[int]:
    """Return scores from 10 down to 0, rounded half up."""
    low, high = behind.min(), behind.max()
    if high <= low:
        return [0] * len(behind)
    scores = MAX_SCORE * (high - behind) / (high - low) + 0.5
    found: list[int] = scores.astype(np.int64).tolist()
    return found


def _used(use: PodUse, sent: Sent, asking: Asking, name: str) -> Floats:
    """Return what is used of a class, by pods and others, float64[m]."""
    columns = sent.table.resources.get(name)
    if columns is None:
        return np.zeros(len(sent.rows))
    used: Floats = columns.used[sent.rows] + use.used(
        name, sent.numbers, asking.uid
    )
    return used


def has_room(use: PodUse, sent: Sent, asking: Asking) -> Mask:
    """Return bool[m]: nodes with room for each extended resource."""
    passing = np.ones(len(sent.rows), np.bool_)
    for name, amount in asking.usage.classes.items():
        passing &= free(use, sent, asking, name) >= amount
    return passing


def lacking(use: PodUse, sent: Sent, asking: Asking, at: int) -> str:
    """Return what the node at an index lacks, in words."""
    one = Sent(sent.table, sent.rows[at : at + 1], sent.numbers[at : at + 1])
    return '; '.join(
        f'{amount} {name} asked, {figure(left)} free'
        for name, amount in asking.usage.classes.items()
        if (left := float(max(0.0, free(use, one, asking, name)[0]))) < amount
    )


def free(use: PodUse, sent: Sent, asking: Asking, name: str) -> Floats:
    """Return what is free of a class beside what pods use, float64[m]."""
    columns = sent.table.resources.get(name)
    if columns is None:
        return np.full(len(sent.rows), -1.0)
    ratio = np.nan_to_num(columns.ratio[sent.rows], nan=1.0)
    size = (columns.total[sent.rows] - columns.reserved[sent.rows]) * ratio
    left: Floats = size - _used(use, sent, asking, name)
    return left
