"""Host filters on I/O operations."""

from __future__ import annotations

from scheduler_service.filters.capacity import CountFilter


class IoOpsFilter(CountFilter):
    """Passes hosts with fewer I/O operations than ``max_io_ops_per_host``.

    An I/O operation is an instance that is being built, resized, rebuilt,
    rescued, unshelved, or saved as an image or backup.
    """

    column = 'num_io_ops'
    option = 'max_io_ops_per_host'
    unit = 'I/O operations'


class AggregateIoOpsFilter(IoOpsFilter):
    """IoOpsFilter with the limit from aggregate metadata.

    The metadata key is ``max_io_ops_per_host``. The least value counts where
    several aggregates of a host set one. Where none does, or one of the
    values is not a whole number, the option counts.
    """

    by_aggregate = True
