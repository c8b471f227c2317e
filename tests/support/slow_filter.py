"""A filter that takes its time, to be loaded by daemons under test."""

from __future__ import annotations

import time
from typing import Any

from scheduler_service.filters.hosts import HostFilter


class SlowFilter(HostFilter):
    """Waits for as many seconds as the name of a flavor says: ``slow:2``.

    :cvar waits: how often it began to wait
    """

    once = True
    waits = 0

    def mask(self, table: Any, request: Any, settings: Any) -> None:
        """Wait, and say nothing."""
        name, _, seconds = str(request.flavor.name).partition(':')
        if name == 'slow':
            SlowFilter.waits += 1
            time.sleep(float(seconds))


SLOW = {
    'filter_scheduler__available_filters': [
        'scheduler_service.filters.hosts.all_filters',
        'tests.support.slow_filter.SlowFilter',
    ],
    'filter_scheduler__enabled_filters': ['SlowFilter'],
}
