"""The arithmetic that the capacity filters share."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import numpy as np

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import Floats, HostTable
from scheduler_service.filters.hosts.base import HostFilter, figure
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class CapacityFilter(HostFilter, abc.ABC):
    """Passes hosts where limit - used >= what is asked.

    A subclass names the class, the figures and the unit.

    :cvar resource: resource class that is looked at
    :cvar limit_name: under which name the limit is reported
    :cvar unit: of the amounts
    """

    resource: ClassVar[str] = ''
    limit_name: ClassVar[str] = ''
    unit: ClassVar[str] = ''
    depends = 'row'

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

    def left(self, table: HostTable, settings: Settings) -> Floats:
        """Return how much of each host's limit is not used, float64[n]."""
        left: Floats = self.limit(table, settings) - self.used(table)
        return left

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Compare what is left with what is asked."""
        asked = self.asked(request)
        passed: Mask = self.left(table, settings) >= asked
        if not settings.allow_self_overcommit:
            passed &= self.total(table) >= asked
        return passed

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
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> dict[str, float]:
        """Report the limit, so that the host can check it again."""
        return {self.limit_name: float(self.limit(table, settings)[row])}
