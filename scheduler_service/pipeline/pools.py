"""One zone request: an ordered fold of pool filters down to one pool."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scheduler_service import errors
from scheduler_service.filters.pools import Caller, PoolFilter
from scheduler_service.model import Pool, ZoneRequest
from scheduler_service.settings import Settings

if TYPE_CHECKING:
    from random import Random


class PoolStorage:
    """Pools at one moment, as pool filters ask for them."""

    def __init__(
        self, pools: Mapping[str, Pool], settings: Settings, rng: Random
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
    """The pool a zone goes to, and what each filter left."""

    pool: Pool
    left: list[tuple[str, list[Pool]]]
    pools: int

    def explanation(self) -> dict[str, Any]:
        """Return the fold as JSON can hold it."""
        return {'pools': self.pools, 'funnel': _funnel(self.left)}


class PoolPipeline:
    """The configured pool filters, in order.

    :param filters: classes; each request gets instances of its own, made
        with the pools of that moment as their storage
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
        rng: Random,
    ) -> PoolChoice:
        """Run the fold and return the one pool that is left.

        :raises NoValidPoolFound: none is left
        :raises MultiplePoolsFound: several are
        :raises PoolNotFound, Forbidden: the pool asked for by id
        """
        left = self.fold(context, pools, zone, rng)
        last = left[-1][1]
        if len(last) == 1:
            return PoolChoice(last[0], left, len(pools))
        facts = {
            'zone': zone.name,
            'pools': len(pools),
            'funnel': _funnel(left),
        }
        told = ', '.join(f'{name} left {len(some)}' for name, some in left)
        if not last:
            raise errors.NoValidPoolFound(
                'There are no pools that matched your request: '
                f'{len(pools)} pools, {told}',
                **facts,
            )
        raise errors.MultiplePoolsFound(
            f'{len(last)} pools match zone {zone.name}, and no filter '
            f'chooses among them: {told}',
            **facts,
        )

    def fold(
        self,
        context: Caller,
        pools: Mapping[str, Pool],
        zone: ZoneRequest,
        rng: Random,
    ) -> list[tuple[str, list[Pool]]]:
        """Return each filter's name and the pools it left, in order."""
        storage = PoolStorage(pools, self.settings, rng)
        current: list[Pool] = list(pools.values())
        left: list[tuple[str, list[Pool]]] = []
        for kind in self.filters:
            name = kind.name or kind.__name__
            try:
                one = kind(storage)
                current = list(one.filter(context, current, zone))
            except errors.ForcedPoolFilteredOut as fault:
                raise _blame(fault, left) from None
            except errors.SchedulerError:
                raise
            except Exception as fault:
                raise errors.FilterFault(
                    f'{name} failed: {type(fault).__name__}: {fault}',
                    filter=name,
                    fault=type(fault).__name__,
                ) from fault
            left.append((name, current))
        return left


def _blame(
    fault: errors.ForcedPoolFilteredOut, left: list[tuple[str, list[Pool]]]
) -> errors.ForcedPoolFilteredOut:
    """Name the first filter that left the forced pool out."""
    pool_id = fault.facts['pool_id']
    culprit = next(
        (
            name
            for name, some in left
            if all(pool.id != pool_id for pool in some)
        ),
        None,
    )
    return errors.ForcedPoolFilteredOut(
        f'Pool {pool_id} was asked for by id, but {culprit} left it out',
        pool_id=pool_id,
        filter=culprit,
    )


def _funnel(left: list[tuple[str, list[Pool]]]) -> list[dict[str, Any]]:
    return [
        {
            'filter': name,
            'left': len(some),
            'pools': [p.name for p in some[:5]],
        }
        for name, some in left
    ]
