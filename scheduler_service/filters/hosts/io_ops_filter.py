"""IoOpsFilter and AggregateIoOpsFilter."""

from __future__ import annotations

from typing import Any

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.hosts.base import HostFilter, figure
from scheduler_service.filters.hosts.numbers import limit_by_aggregate
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class CountFilter(HostFilter):
    """Passes hosts where a count is below a limit.

    :cvar column: of the table
    :cvar option: field of the settings, and metadata key
    :cvar what: the things that are counted
    """

    column = ''
    option = ''
    what = ''
    depends = 'row'

    def limit(self, table: HostTable, settings: Settings) -> Any:
        """Return the limit, one for all hosts or one for each."""
        return getattr(settings, self.option)

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Compare."""
        passed: Mask = table.number(self.column) < self.limit(table, settings)
        return passed

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Give both figures."""
        limit = self.limit(table, settings)
        most = limit if isinstance(limit, int | float) else limit[row]
        count = table.number(self.column)[row]
        return f'{count} {self.what}, below {figure(most)} are allowed'


class ByAggregate(CountFilter):
    """Mixed in before a count filter: aggregates may set the limit."""

    def limit(self, table: HostTable, settings: Settings) -> Any:
        """Return the least limit of a host's aggregates, or the option."""
        default = getattr(settings, self.option)
        return limit_by_aggregate(table, self.option, default, int)


class IoOpsFilter(CountFilter):
    """Passes hosts with fewer I/O operations than ``max_io_ops_per_host``."""

    column = 'num_io_ops'
    option = 'max_io_ops_per_host'
    what = 'I/O operations'


class AggregateIoOpsFilter(ByAggregate, IoOpsFilter):
    """IoOpsFilter with ``max_io_ops_per_host`` from aggregates' metadata.

    The least of several values; one that is no whole number, or none at all:
    the option.
    """
