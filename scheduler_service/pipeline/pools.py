"""One zone request: pool filters in order, until one pool is left.

Nothing is kept between requests but the configured filter classes, so any
thread may call a :class:`PoolPipeline` at any time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from scheduler_service import errors
from scheduler_service.filters.pools import Caller, PoolFilter
from scheduler_service.filters.pools.built_in import (
    AttributeFilter,
    is_bare,
)
from scheduler_service.model import Pool, ZoneRequest
from scheduler_service.pipeline.weighing import RandomSource
from scheduler_service.settings import Settings

# (name of a filter, pools it left), in the order of the filters.
Steps = list[tuple[str, list[Pool]]]
# What :meth:`PoolPipeline.choose` gets.
_Asked = tuple[Caller, Mapping[str, Pool], ZoneRequest, RandomSource]
_POOLS_NAMED = 5


class PoolStorage:
    """The pools of one snapshot, as pool filters ask for them."""

    def __init__(
        self, pools: Mapping[str, Pool], settings: Settings, rng: RandomSource
    ) -> None:
        self.settings = settings
        self._pools = pools
        self._rng = rng

    def get_pool(self, context: Any, pool_id: str) -> Pool:
        """Return a pool by id.

        :raises PoolNotFound: where there is none
        """
        try:
            return self._pools[pool_id]
        except (KeyError, TypeError):
            raise errors.PoolNotFound(pool_id=str(pool_id)) from None

    def find_pools(self, context: Any) -> list[Pool]:
        """Return all pools."""
        return list(self._pools.values())

    def chance(self, count: int) -> int:
        """Return a random number from 0 to *count* - 1."""
        return self._rng.randrange(count)


@dataclasses.dataclass(slots=True)
class PoolChoice:
    """The pool that a zone goes to, and the pools that each filter left.

    :ivar explanation: how many pools there were, and which of them each filter
        left, in order, as plain values
    """

    pool: Pool
    explanation: dict[str, Any]


class PoolPipeline:
    """The configured pool filters, in order.

    :param filters: classes; each request gets instances of its own, made
        with the pools of that moment as their storage
    :raises NoFiltersConfigured: there are no filters
    """

    def __init__(
        self, filters: Sequence[type[PoolFilter]], settings: Settings
    ) -> None:
        if not filters:
            raise errors.NoFiltersConfigured()
        self.filters = tuple(filters)
        self.settings = settings

    def choose(
        self,
        context: Caller,
        pools: Mapping[str, Pool],
        zone: ZoneRequest,
        rng: RandomSource,
    ) -> PoolChoice:
        """Run all filters and return the one pool that is left.

        :raises NoValidPoolFound: no pool is left
        :raises MultiplePoolsFound: several pools are left
        :raises PoolNotFound, Forbidden: about the pool that the zone names
        :raises FilterFault: a filter failed
        """
        asked = context, pools, zone, rng
        steps = self.run_filters(*asked)
        remaining = steps[-1][1]
        funnel = [
            {
                'filter': name,
                'left': len(left),
                'pools': [pool.name for pool in left[:_POOLS_NAMED]],
            }
            for name, left in steps
        ]
        explanation = {'pools': len(pools), 'funnel': funnel}
        if len(remaining) == 1:
            return PoolChoice(remaining[0], explanation)
        facts = {'zone': zone.name, **explanation}
        summary = ', '.join(f'{name} left {len(left)}' for name, left in steps)
        if not remaining:
            causes = self._rejections(asked, steps)
            alone = [cause for cause in causes if cause['alone']]
            for cause in alone or causes:
                keeps = f'alone keeps out {cause["alone"]}'
                if not alone:
                    keeps = f'keeps out {cause["out"]}'
                summary += (
                    f'; {cause["filter"]} {keeps} '
                    f'({cause["closest"]["pool"]}: {cause["reason"]})'
                )
            raise errors.NoValidPoolFound(
                'There are no pools that matched your request: '
                f'{len(pools)} pools, {summary}{_hint(steps, pools)}',
                filters=causes,
                **facts,
            )
        shown = f'zone {zone.name}' if zone.name else 'the zone'
        raise errors.MultiplePoolsFound(
            f'{len(remaining)} pools match {shown}, and no filter chooses '
            f'among them: {summary}',
            **facts,
        )

    def _rejections(self, asked: _Asked, steps: Steps) -> list[dict[str, Any]]:
        """Return for each filter how many pools it leaves out, and why.

        As for hosts, see ``explain.rejections``; a pool is left out by one
        filter alone if it passes all that follow.
        """
        _, pools, zone, rng = asked
        storage = PoolStorage(pools, self.settings, rng)
        causes, given = [], [*pools.values()]
        for number, (name, left) in enumerate(steps):
            out = [pool for pool in given if pool not in left]
            given = left
            if not out:
                continue
            rest = self.filters[number + 1 :]
            alone = [
                pool
                for pool in out
                if not rest
                or PoolPipeline(rest, self.settings)._passes(asked, pool)
            ]
            missed = [
                (_missed(self.filters[number], storage, pool, zone), pool)
                for pool in alone or out
            ]
            reasons, pool = min(
                missed,
                key=lambda pair: (len(pair[0]), -_alike(pair[1], zone)),
            )
            reason = '; '.join(reasons)
            causes.append(
                {
                    'filter': name,
                    'out': len(out),
                    'alone': len(alone),
                    'closest': {
                        'pool': pool.name,
                        'lacks': len(reasons),
                        'unit': 'requirements',
                    },
                    'reason': reason,
                    'sentence': (
                        f'{name}: {len(out)} of {len(pools)}: {reason}'
                    ),
                }
            )
        return causes

    def _passes(self, asked: _Asked, pool: Pool) -> bool:
        try:
            steps = self.run_filters(*asked, [pool])
        except errors.SchedulerError:
            return False
        return pool in steps[-1][1]

    def run_filters(
        self,
        context: Caller,
        pools: Mapping[str, Pool],
        zone: ZoneRequest,
        rng: RandomSource,
        candidates: Sequence[Pool] | None = None,
    ) -> Steps:
        """Return the pools that each filter left, in order.

        A filter gets the pools that the one before it returned. It may also
        return a pool that it did not get, such as the default pool.

        :param pools: all pools that filters may look up
        :param candidates: the pools that the first filter gets; None: all
        """
        storage = PoolStorage(pools, self.settings, rng)
        current = list(pools.values() if candidates is None else candidates)
        steps: Steps = []
        for filter_class in self.filters:
            name = filter_class.name or filter_class.__name__
            try:
                pool_filter = filter_class(storage)
                current = list(pool_filter.filter(context, current, zone))
            except errors.ForcedPoolFilteredOut as error:
                raise self._with_reason(error, steps, storage, zone) from None
            except BaseException as fault:
                errors.raise_named(name, fault)
            steps.append((name, current))
        return steps

    def _with_reason(
        self,
        error: errors.ForcedPoolFilteredOut,
        steps: Steps,
        storage: PoolStorage,
        zone: ZoneRequest,
    ) -> errors.ForcedPoolFilteredOut:
        """Return the error with the filter that left the pool out, and why."""
        pool = storage.get_pool(None, error.facts['pool_id'])
        rejected_by, reason = None, PoolFilter.why
        for (name, left), kind in zip(steps, self.filters, strict=False):
            if pool not in left:
                rejected_by = name
                reason = '; '.join(_missed(kind, storage, pool, zone))
                break
        return errors.ForcedPoolFilteredOut(
            f'Pool {pool.id} was asked for by id, but {rejected_by} left it '
            f'out: {reason}',
            pool_id=pool.id,
            filter=rejected_by,
            reason=reason,
        )


def _hint(steps: Steps, pools: Mapping[str, Pool]) -> str:
    """Say where an option would have kept pools that have no attributes."""
    emptied = next(name for name, left in steps if not left)
    bare = sum(is_bare(pool) for pool in pools.values())
    if emptied != AttributeFilter.name or not bare:
        return ''
    return (
        f'; {bare} of the pools without attributes, which [pool_scheduler] '
        'keep_pools_without_attributes would keep'
    )


def _alike(pool: Pool, zone: ZoneRequest) -> int:
    """Return how many attributes of a zone a pool has, in any case."""
    asked, has = (
        {(key.lower(), value.lower()) for key, value in each.items()}
        for each in (zone.attributes, pool.attributes)
    )
    return len(asked & has)


def _missed(
    filter_class: type[PoolFilter],
    storage: PoolStorage,
    pool: Pool,
    zone: ZoneRequest,
) -> Sequence[str]:
    """Return why a filter leaves out a pool; other bases do not say."""
    with errors.naming(filter_class.name or filter_class.__name__):
        made: Any = filter_class(storage)
        missed = made.missed(pool, zone) if hasattr(made, 'missed') else ()
        return missed or [getattr(made, 'why', PoolFilter.why)]
