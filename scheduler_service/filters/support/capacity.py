"""The base class of filters that compare free capacity with a request."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from scheduler_service.columns.dictionary import Floats, Mask
from scheduler_service.columns.load import Formula
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.base import (
    Comparison,
    ComparisonFilter,
    figure,
)
from scheduler_service.model import Request
from scheduler_service.settings import Settings


class CapacityFilter(ComparisonFilter, abc.ABC):
    """Passes hosts where ``limit - used`` is at least what is requested.

    The limit is the host's total times its allocation ratio. Without
    ``allow_self_overcommit`` the total, too, has to be at least what is
    requested. A subclass names the resource class and the amounts.

    :cvar resource: resource class that is compared, such as ``VCPU``
    :cvar limit_name: key under which :meth:`limits` reports the limit
    :cvar unit: unit of all amounts, as reasons show it
    """

    resource: ClassVar[str] = ''
    limit_name: ClassVar[str] = ''
    unit: ClassVar[str] = ''

    @abc.abstractmethod
    def requested(self, request: Request) -> int:
        """Return the requested amount, in the filter's unit."""

    def total(self, table: HostTable) -> Any:
        """Return the size of each host, int64[n], in the filter's unit."""
        return table.resources[self.resource].total

    def used(self, table: HostTable) -> Any:
        """Return the used amount of each host, [n], in the filter's unit."""
        return table.resources[self.resource].used

    def limit(self, table: HostTable, settings: Settings) -> Floats:
        """Return how much of each host may be used in all, float64[n]."""
        return table.capacity(self.resource, settings)

    def remaining_formula(
        self, table: HostTable, settings: Settings
    ) -> Formula:
        """Return the formula of ``limit - used`` of some rows, float64."""
        limit, used = self.limit(table, settings), self.used(table)
        return lambda rows: limit[rows] - used[rows]

    def remaining(self, table: HostTable, settings: Settings) -> Floats:
        """Return ``limit - used`` of each host, float64[n].

        Negative where more is used than the limit allows.
        """
        formula = self.remaining_formula(table, settings)
        remaining: Floats = formula(slice(None))
        return remaining

    def exempt(self, table: HostTable, settings: Settings) -> Mask | None:
        """Return hosts that pass any request, bool[n]; None: no host."""
        return None

    def comparisons(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Sequence[Comparison]:
        """Compare what remains of each host with the requested amount."""
        requested = self.requested(request)
        ratio = settings.default_ratio(self.resource)
        remaining = table.load_column(
            (self.name, 'remaining', ratio),
            self.resource,
            lambda: self._exempting(
                table, settings, self.remaining_formula(table, settings)
            ),
        )
        has_room = Comparison(remaining, np.greater_equal, requested)
        if settings.allow_self_overcommit:
            return (has_room,)
        total = table.load_column(
            (self.name, 'total', ratio),
            self.resource,
            lambda: self._exempting(
                table, settings, lambda rows: self.total(table)[rows] * 1.0
            ),
        )
        return has_room, Comparison(total, np.greater_equal, requested)

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
        """Return what each host lacks, float64[n], and the unit."""
        requested = self.requested(request)
        lacks = requested - self.remaining(table, settings)
        if not settings.allow_self_overcommit:
            lacks = np.maximum(lacks, requested - self.total(table))
        return lacks, self.unit

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Give the requested amount, and the host's limit and use."""
        requested = self.requested(request)
        total = self.total(table)[row]
        if not settings.allow_self_overcommit and requested > total:
            return (
                f'{requested} {self.unit} requested, more than the '
                f'{figure(total)} that the host has in all'
            )
        limit = self.limit(table, settings)[row]
        used = self.used(table)[row]
        return (
            f'{requested} {self.unit} requested, {figure(limit - used)} free '
            f'(limit {figure(limit)}, {figure(used)} used)'
        )

    def checks(self, request: Request, amount: int) -> bool:
        """Say whether the filter compares the amount that a claim takes.

        :param amount: what the claim takes of the resource class, in the
            unit of the class
        """
        return self.requested(request) == amount

    def limits(
        self, table: HostTable, row: int, settings: Settings
    ) -> dict[str, float]:
        """Report the limit, so that the host itself can check it again."""
        return {self.limit_name: float(self.limit(table, settings)[row])}
