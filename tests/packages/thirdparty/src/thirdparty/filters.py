"""A filter of each kind, as people outside the project write them."""

import numpy as np

from scheduler_service.filters.hosts.base import HostFilter
from scheduler_service.filters.pools import base
from scheduler_service.weighers import Weigher


class MyCustomFilter(base.Filter):
    """Leaves pools whose name starts as the zone's attribute says."""

    name = 'my_custom_filter'

    def filter(self, context, pools, zone):
        start = zone.attributes.get('starts_with', '')
        return [pool for pool in pools if pool.name.startswith(start)]


class OurCustomFilter(base.PoolFilter):
    """Leaves the last pool by name."""

    name = 'our_custom_filter'

    def filter(self, context, pools, zone):
        return sorted(pools, key=lambda pool: pool.name)[-1:]


class EvenHostsFilter(HostFilter):
    """Passes every second host, as a mask."""

    def mask(self, table, request, settings):
        return np.arange(len(table)) % 2 == 0


class LoopFilter:
    """Passes hosts with free memory, one at a time and without our base."""

    def host_passes(self, host_state, spec):
        return host_state.free_ram_mb > 0


class LastHostWeigher(Weigher):
    """Prefers later rows."""

    def weigh(self, table, rows, request, settings):
        return np.arange(len(table), dtype=np.float64)[rows]


def all_of_ours():
    """Return every host filter of this package."""
    return [EvenHostsFilter, LoopFilter]
