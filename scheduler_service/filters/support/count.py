"""The comparison that the filters on counts share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.hosts.base import (
    Comparison,
    ComparisonFilter,
    figure,
)
from scheduler_service.filters.support.aggregate_numbers import (
    limit_by_aggregate,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class CountFilter(ComparisonFilter):
    """Passes hosts where a count is below a limit.

    :cvar column: of the table
    :cvar option: field of the settings, and metadata key
    :cvar what: the things that are counted
    """

    column = ''
    option = ''
    what = ''

    def limit(self, table: HostTable, settings: Settings) -> Any:
        """Return the limit, one for all hosts or one for each."""
        return getattr(settings, self.option)

    def comparisons(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Sequence[Comparison]:
        """Compare the count with the limit."""
        count = table.number(self.column)
        return (Comparison(count, np.less, self.limit(table, settings)),)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Give both figures."""
        limit = self.limit(table, settings)
        most = limit if isinstance(limit, int | float) else limit[row]
        count = table.number(self.column)[row]
        return f'{count} {self.what}, below {figure(most)} are allowed'


class AggregateLimitMixin(CountFilter):
    """Mixed in before a count filter: aggregates may set the limit."""

    def limit(self, table: HostTable, settings: Settings) -> Any:
        """Return the least limit of a host's aggregates, or the option."""
        default = getattr(settings, self.option)
        return limit_by_aggregate(table, self.option, default, int)
