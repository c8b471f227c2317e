"""IoOpsFilter."""

from __future__ import annotations

from scheduler_service.filters.support.count import CountFilter


class IoOpsFilter(CountFilter):
    """Passes hosts with fewer I/O operations than ``max_io_ops_per_host``."""

    column = 'num_io_ops'
    option = 'max_io_ops_per_host'
    what = 'I/O operations'
