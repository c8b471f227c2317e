"""The base class of filters that compare a count with a limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.base import (
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

    :cvar column: name of the column of counts in the host table
    :cvar option: name of the limit in the settings, and the metadata key
        that aggregates use for it
    :cvar unit: what is counted, as reasons show it
    """

    column: ClassVar[str] = ''
    option: ClassVar[str] = ''
    unit: ClassVar[str] = ''

    def limit(self, table: HostTable, settings: Settings) -> Any:
        """Return the limit: one number for all hosts, or one for each."""
        return getattr(settings, self.option)

    def comparisons(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Sequence[Comparison]:
        """Compare the column with the limit."""
        count = table.count_column(self.column)
        return (Comparison(count, np.less, self.limit(table, settings)),)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Give the host's count and its limit."""
        limit = self.limit(table, settings)
        host_limit = limit if isinstance(limit, int | float) else limit[row]
        count = table.number(self.column)[row]
        return (
            f'the host has {count} {self.unit}, and must have fewer than '
            f'{figure(host_limit)}'
        )


class AggregateLimitMixin(CountFilter):
    """Comes before a count filter in the bases of a class.

    The limit of a host is then the least that its aggregates state in their
    metadata. The option counts where they state none, and where one of
    several values is not a whole number.
    """

    def limit(self, table: HostTable, settings: Settings) -> Any:
        """Return the least limit of a host's aggregates, or the option."""
        default = getattr(settings, self.option)
        return limit_by_aggregate(table, self.option, default, int)
