"""A filter of each kind, as people outside the project write them."""

import numpy as np

from scheduler_service.filters.base import HostFilter
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
    """Passes every second host, and leaves its key at the default."""

    def mask(self, table, request, settings):
        return np.arange(len(table)) % 2 == 0


class RackFilter(HostFilter):
    """Passes hosts in the rack of the hint, and says what it depends on."""

    once = True

    def mask(self, table, request, settings):
        rack = self.mask_key(table, request, settings)
        if rack is None:
            return None
        return table.coded['host'].mask_where(
            lambda host: host.startswith(rack)
        )

    def mask_key(self, table, request, settings):
        return request.hint('rack')

    def reason(self, table, row, request, settings):
        return f'the host is not in the rack {request.hint("rack")}'


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
    return [EvenHostsFilter, RackFilter, LoopFilter]
