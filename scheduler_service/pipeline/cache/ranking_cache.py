"""Finds the kept ranking of a request, and keeps new ones.

It belongs to the thread of its pipeline, and to one table at a time.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from scheduler_service.columns.table import HostTable
from scheduler_service.pipeline.cache.cached_ranking import CachedRanking
from scheduler_service.pipeline.filtering import Form, Step
from scheduler_service.pipeline.funnel import Funnel
from scheduler_service.pipeline.ranking import Ranking
from scheduler_service.pipeline.weighing import Term

# Below so many hosts a pass over all of them costs no more.
MIN_HOSTS = 20_000
# What all rankings together may hold.
_BYTES = 128 * 2**20
# Rankings are not asked for more of the best hosts than this.
_MOST_BEST = 256
# A ranking is kept when its key comes again among so many.
_SEEN = 4096


class CacheLookup(NamedTuple):
    """What a request finds.

    :ivar ranking: None where no host passes
    """

    ranking: Ranking | None
    funnel: Funnel


class RankingCache:
    """Kept rankings by what plug-ins read of a request.

    :param min_hosts: tables with fewer hosts are left alone
    :ivar hits: how many lookups found their answer
    :ivar misses: how many did not
    """

    def __init__(self, min_hosts: int = MIN_HOSTS) -> None:
        self._min_hosts = min_hosts
        self._rankings: dict[Hashable, CachedRanking] = {}
        self._seen: dict[Hashable, None] = {}
        self.hits = self.misses = 0

    def lookup(
        self,
        table: HostTable,
        steps: Sequence[Step],
        terms: Sequence[Term],
        best: int,
        ties: bool,
    ) -> CacheLookup | None:
        """Return what a pass over all hosts would, or None.

        :param best: how many of the first hosts have to be there
        :param ties: whether every host as good as the best has to be there
        """
        if (
            len(table) < self._min_hosts
            or best > _MOST_BEST
            or not _is_cacheable(steps, terms)
        ):
            return None
        key = _key(table, steps, terms)
        cached = self._rankings.pop(key, None)
        if cached is None or not cached.refresh(table):
            cached = self._make(key, table, steps, terms)
        if cached is None:
            self.misses += 1
            return None
        # The one that was used last is dropped last.
        self._rankings[key] = cached
        rows = [
            (at, step.verdict)
            for at, step in enumerate(steps)
            if step.form == Form.ROWS and step.verdict is not None
        ]
        found = cached.rank(rows, best, ties)
        if found is None:
            del self._rankings[key]
            self.misses += 1
            return None
        self.hits += 1
        return CacheLookup(found.ranking, _funnel(table, steps, found.removed))

    def _make(
        self,
        key: Hashable,
        table: HostTable,
        steps: Sequence[Step],
        terms: Sequence[Term],
    ) -> CachedRanking | None:
        """Keep a ranking, if its key came before."""
        if key not in self._seen:
            if len(self._seen) >= _SEEN:
                self._seen.pop(next(iter(self._seen)))
            self._seen[key] = None
            return None
        most = max(4, _BYTES // (2 * len(table)))
        while len(self._rankings) >= most:
            self._rankings.pop(next(iter(self._rankings)))
        return CachedRanking(table, steps, terms)


def _is_cacheable(steps: Sequence[Step], terms: Sequence[Term]) -> bool:
    """Whether nothing has to be asked of all hosts each time."""
    return not any(step.each_time for step in steps) and not any(
        term.raw is None for term in terms
    )


def _key(
    table: HostTable, steps: Sequence[Step], terms: Sequence[Term]
) -> Hashable:
    """Return what the enabled plug-ins read, and nothing else.

    Columns are named by their identity: a ranking holds them, so that no
    other column can have it.
    """
    parts: list[Hashable] = [id(table.topology), len(steps)]
    for at, step in enumerate(steps):
        if step.verdict is None:
            continue
        if step.form == Form.MASK:
            parts.append((at, step.key))
        elif step.form == Form.COMPARISONS:
            for column, _, value in step.verdict:
                if isinstance(value, np.ndarray):
                    value = ('of', id(value))
                parts.append((at, id(column), value))
    parts.extend(id(term.raw) for term in terms)
    return tuple(parts)


def _funnel(
    table: HostTable, steps: Sequence[Step], removed: Sequence[int]
) -> Funnel:
    """Return the funnel that a pass over all hosts counts."""
    left = len(table)
    funnel = Funnel(left)
    for step, out in zip(steps, removed, strict=True):
        if step.verdict is None and step.filter.name[0].islower():
            continue
        funnel.counts.append((step.filter.name, left, left - out))
        left -= out
        if not left:
            break
    return funnel
