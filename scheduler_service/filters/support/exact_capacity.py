"""The base class of filters that require exactly the free capacity."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.base import (
    Comparison,
    ComparisonFilter,
    figure,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class ExactCapacityFilter(ComparisonFilter, abc.ABC):
    """Passes hosts where exactly the requested amount is free.

    Allocation ratios do not count: free is the total less what is used.

    :cvar unit: unit of the amounts, as reasons show it
    """

    unit: ClassVar[str] = ''

    @abc.abstractmethod
    def requested(self, request: Request) -> int:
        """Return the requested amount, in the filter's unit."""

    @abc.abstractmethod
    def free(self, table: HostTable) -> Any:
        """Return the free amount of each host, [n], in the filter's unit.

        A column that is kept up to date with the load.
        """

    def comparisons(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Sequence[Comparison]:
        """Compare for equality."""
        requested = self.requested(request)
        return (Comparison(self.free(table), np.equal, requested),)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Give the requested and the free amount."""
        free = figure(self.free(table)[row])
        return (
            f'exactly {self.requested(request)} {self.unit} must be free, '
            f'{free} are'
        )
