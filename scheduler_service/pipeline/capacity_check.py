"""The mandatory filter on free capacity, for all amounts of a claim.

The claim checks the capacity again, but not the unit bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import Floats, Mask
from scheduler_service.columns.load import Formula
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.base import (
    Comparison,
    ComparisonFilter,
    HostFilter,
    figure,
)
from scheduler_service.filters.capacity import CapacityFilter
from scheduler_service.model import STANDARD_CLASSES, Request
from scheduler_service.settings import Settings


class CapacityCheck(ComparisonFilter):
    """Leaves hosts with free capacity for every resource class of the claim.

    ``capacity - used >= asked`` with the class's unit bounds, see
    :meth:`ResourceColumns.capacity`. A host that reports no vCPUs at all
    counts as not collected.

    :param filters: the configured filters; a resource class that a filter
        checks completely is left to that filter
    """

    name = 'resources'

    def __init__(self, filters: Sequence[HostFilter] = ()) -> None:
        self._filters = filters
        self._capacity: dict[str, list[CapacityFilter]] = {}
        for host_filter in filters:
            if isinstance(host_filter, CapacityFilter):
                self._capacity.setdefault(host_filter.resource, []).append(
                    host_filter
                )

    def comparisons(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Sequence[Comparison]:
        """Compare the free capacity of each class that no filter checks."""
        comparisons: list[Comparison] = []
        # Filters do not run where hosts are forced.
        filters = {} if request.forced else self._capacity
        for name, amount in request.resources.items():
            for host_filter in filters.get(name, ()):
                if host_filter.checks(request, amount):
                    comparisons += _in_units(table, name, amount)
                    break
            else:
                comparisons += self._class(table, name, amount, settings)
        return comparisons

    def _class(
        self, table: HostTable, name: str, amount: int, settings: Settings
    ) -> list[Comparison]:
        """Return the comparisons for one class."""
        if name not in table.resources:
            nobody = table.topology.memoize(
                'no host', lambda: np.zeros(len(table), np.bool_)
            )
            return [Comparison(nobody, np.equal, True)]
        room = table.load_column(
            ('room', name, settings.default_ratio(name)),
            name,
            lambda: self._room(table, name, settings),
        )
        has_room = Comparison(room, np.greater_equal, amount)
        return [has_room, *_in_units(table, name, amount)]

    def _room(
        self, table: HostTable, name: str, settings: Settings
    ) -> Formula:
        """Return the formula of the free capacity of a class.

        Infinite for hosts without figures, minus infinity for those that do
        not offer the class.
        """
        limit = self._limit(table, name, settings)
        columns = table.resources[name]
        if name == 'VCPU':
            limit = np.where(columns.total == 0, np.inf, limit)
        elif name not in STANDARD_CLASSES:
            limit = np.where(columns.total < 0, -np.inf, limit)
        if name == 'DISK_GB':
            free, total = table.free_disk_formula(), columns.total
            return lambda rows: (
                limit[rows] - (total[rows] - free(rows) / 1024.0)
            )
        used = columns.used
        return lambda rows: limit[rows] - used[rows]

    def miss(
        self, table: HostTable, request: Request, settings: Settings
    ) -> tuple[np.ndarray[Any, Any], str] | None:
        """Return the miss of the class that rejects most hosts."""
        worst: tuple[int, np.ndarray[Any, Any], str] | None = None
        for name, amount in request.resources.items():
            if name not in table.resources:
                continue
            lacking = self.lacks(table, name, amount, settings)
            out = int(np.count_nonzero(lacking > 0))
            if out and (worst is None or out > worst[0]):
                worst = out, lacking, name
        return (worst[1], worst[2]) if worst else None

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Name the classes without enough free capacity, with the figures."""
        reasons = []
        for name, amount in request.resources.items():
            at = np.array([row])
            if all(
                comparison.at(at)[0]
                for comparison in self._class(table, name, amount, settings)
            ):
                continue
            offered = name in table.resources and (
                table.resources[name].total[row] >= 0
            )
            missing = (
                self.lacks(table, name, amount, settings)[row]
                if offered
                else 0
            )
            reasons.append(
                f'{amount} {name} asked, lacks {figure(missing)}'
                if missing > 0
                else f'{amount} {name} asked, not offered in such units'
            )
        return '; '.join(reasons)

    def lacks(
        self, table: HostTable, name: str, amount: int, settings: Settings
    ) -> np.ndarray[Any, Any]:
        """Return what each host lacks of *amount*, float64[n]; <= 0: fits."""
        columns = table.resources[name]
        used: Any = columns.used
        if name == 'DISK_GB':
            used = columns.total - table.free_disk_mb() / 1024.0
        missing: np.ndarray[Any, Any] = (
            amount + used - self._limit(table, name, settings)
        )
        return missing

    def ratios(
        self, table: HostTable, settings: Settings, name: str = ''
    ) -> tuple[str, Floats] | None:
        """Return the ratios that a filter states for a class, or None."""
        for host_filter in self._filters:
            stated = host_filter.ratios(table, settings)
            if stated is not None and stated[0] == name:
                return stated
        return None

    def _limit(
        self, table: HostTable, name: str, settings: Settings
    ) -> Floats:
        stated = self.ratios(table, settings, name)
        if stated is None:
            return table.capacity(name, settings)
        columns = table.resources[name]
        limit: Floats = (columns.total - columns.reserved) * stated[1]
        return limit


def _in_units(
    table: HostTable, name: str, amount: int
) -> Sequence[Comparison]:
    """Return the comparisons for hosts that bound a single allocation."""
    units = table.topology.mask(
        ('units', name, amount), lambda: _units(table, name, amount)
    )
    return () if units is None else (Comparison(units, np.equal, True),)


def _units(table: HostTable, name: str, amount: int) -> Mask:
    """Return bool[n]: hosts that give the amount of a class in one piece."""
    columns = table.resources[name]
    units: Mask = (columns.min_unit <= amount) & (amount <= columns.max_unit)
    units &= amount % columns.step_size == 0
    return units
