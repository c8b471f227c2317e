"""The comparison that the exact capacity filters share."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from scheduler_service.columns.table import HostTable
from scheduler_service.filters.hosts.base import (
    Comparison,
    ComparisonFilter,
    figure,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class ExactCapacityFilter(ComparisonFilter, abc.ABC):
    """Passes hosts that have exactly what is asked for left."""

    unit = ''

    @abc.abstractmethod
    def asked(self, request: Request) -> int:
        """Return the amount asked."""

    @abc.abstractmethod
    def free(self, table: HostTable) -> Any:
        """Return what is free of each host, [n], kept true under load."""

    def comparisons(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Sequence[Comparison]:
        """Compare for equality."""
        return (Comparison(self.free(table), np.equal, self.asked(request)),)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Give both figures."""
        free = figure(self.free(table)[row])
        return f'exactly {self.asked(request)} {self.unit} asked, {free} free'
