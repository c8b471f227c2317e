"""The arithmetic that the capacity filters share."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from scheduler_service.columns.dictionary import Floats, Mask
from scheduler_service.columns.load import Formula
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.hosts.base import (
    Comparison,
    ComparisonFilter,
    figure,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class CapacityFilter(ComparisonFilter, abc.ABC):
    """Passes hosts where limit - used >= what is asked.

    A subclass names the class, the figures and the unit.

    :cvar resource: resource class that is looked at
    :cvar limit_name: under which name the limit is reported
    :cvar unit: of the amounts
    """

    resource: ClassVar[str] = ''
    limit_name: ClassVar[str] = ''
    unit: ClassVar[str] = ''

    @abc.abstractmethod
    def asked(self, request: Request) -> int:
        """Return the amount asked, in the filter's unit."""

    def total(self, table: HostTable) -> Any:
        """Return the size of each host, int64[n], in the filter's unit."""
        return table.resources[self.resource].total

    def used(self, table: HostTable) -> Any:
        """Return what is used of each host, [n], in the filter's unit."""
        return table.resources[self.resource].used

    def limit(self, table: HostTable, settings: Settings) -> Floats:
        """Return how much of each host may be used, float64[n]."""
        return table.capacity(self.resource, settings)

    def left_formula(self, table: HostTable, settings: Settings) -> Formula:
        """Return the formula of how much of a host's limit is not used."""
        limit, used = self.limit(table, settings), self.used(table)
        return lambda rows: limit[rows] - used[rows]

    def left(self, table: HostTable, settings: Settings) -> Floats:
        """Return how much of each host's limit is not used, float64[n]."""
        left: Floats = self.left_formula(table, settings)(slice(None))
        return left

    def exempt(self, table: HostTable, settings: Settings) -> Mask | None:
        """Return hosts that pass whatever is asked, bool[n]; None: nobody."""
        return None

    def comparisons(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Sequence[Comparison]:
        """Compare what is left with what is asked."""
        asked = self.asked(request)
        ratio = settings.default_ratio(self.resource)
        left = table.load_column(
            (self.name, 'left', ratio),
            self.resource,
            lambda: self._exempting(
                table, settings, self.left_formula(table, settings)
            ),
        )
        room = Comparison(left, np.greater_equal, asked)
        if settings.allow_self_overcommit:
            return (room,)
        size = table.load_column(
            (self.name, 'size', ratio),
            self.resource,
            lambda: self._exempting(
                table, settings, lambda rows: self.total(table)[rows] * 1.0
            ),
        )
        return room, Comparison(size, np.greater_equal, asked)

    def _exempting(
        self, table: HostTable, settings: Settings, formula: Formula
    ) -> Formula:
        """Return the formula, infinite for hosts that are exempt."""
        exempt = self.exempt(table, settings)
        if exempt is None or not exempt.any():
            return formula
        return lambda rows: np.where(exempt[rows], np.inf, formula(rows))

    def miss(
        self, table: HostTable, request: Request, settings: Settings
    ) -> tuple[np.ndarray[Any, Any], str] | None:
        """Return what each host lacks."""
        lacks = self.asked(request) - self.left(table, settings)
        if not settings.allow_self_overcommit:
            lacks = np.maximum(lacks, self.asked(request) - self.total(table))
        return lacks, self.unit

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Give the figures of one host."""
        limit = self.limit(table, settings)[row]
        used = self.used(table)[row]
        return (
            f'{self.asked(request)} {self.unit} asked, '
            f'{figure(limit - used)} left of {figure(limit)} '
            f'({figure(used)} used)'
        )

    def checks(self, request: Request, amount: int) -> bool:
        """Whether a claim of *amount* is what this filter looks at."""
        return self.asked(request) == amount

    def limits(
        self, table: HostTable, row: int, settings: Settings
    ) -> dict[str, float]:
        """Report the limit, so that the host can check it again."""
        return {self.limit_name: float(self.limit(table, settings)[row])}
