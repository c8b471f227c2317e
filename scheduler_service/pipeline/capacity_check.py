"""The mandatory filter on free capacity, for all amounts of a claim.

The claim checks the capacity again, but not the unit bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scheduler_service import errors
from scheduler_service.columns.dictionary import Floats, Mask
from scheduler_service.columns.load import Formula
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.base import (
    Comparison,
    ComparisonFilter,
    HostFilter,
)
from scheduler_service.filters.capacity import (
    CapacityFilter,
    used_of_aggregate,
)
from scheduler_service.model import STANDARD_CLASSES, Request
from scheduler_service.settings import Settings
from scheduler_service.texts import figure, nearest


class CapacityCheck(ComparisonFilter):
    """Leaves hosts with free capacity for every resource class of the claim.

    ``capacity - used >= asked`` with the class's unit bounds, see
    :meth:`ResourceColumns.capacity`. A host that reports no vCPUs at all
    counts as not collected.

    :param filters: the configured filters; a resource class that a filter
        checks completely is left to that filter
    """

    name = 'resources'
    mandatory = True

    def __init__(self, filters: Sequence[HostFilter] = ()) -> None:
        self.stating = [
            each
            for each in filters
            if type(each).ratios is not HostFilter.ratios
            and getattr(each, 'ratio_key', True)
        ]
        self._capacity: dict[str, list[CapacityFilter]] = {}
        for host_filter in filters:
            if isinstance(host_filter, CapacityFilter):
                self._capacity.setdefault(host_filter.resource, []).append(
                    host_filter
                )

    def comparisons(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Sequence[Comparison]:
        comparisons: list[Comparison] = []
        # Filters do not run where hosts are forced.
        filters = {} if request.forced else self._capacity
        for name, amount in request.resources.items():
            if any(
                each.requested(request) == amount * each.units
                for each in filters.get(name, ())
            ):
                comparisons += _in_units(table, name, amount)
            else:
                comparisons += self._class(table, name, amount, settings)
        return comparisons

    def _class(
        self, table: HostTable, name: str, amount: int, settings: Settings
    ) -> list[Comparison]:
        if name not in table.resources:
            nobody = table.topology.memoize(
                'no host', lambda: np.zeros(len(table), np.bool_)
            )
            return [Comparison(nobody, np.equal, True)]
        room = self.room(table, name, settings)
        has_room = Comparison(room, np.greater_equal, amount)
        return [has_room, *_in_units(table, name, amount)]

    def room(self, table: HostTable, name: str, settings: Settings) -> Floats:
        """Return the free capacity of a class, float64[n].

        Infinite for hosts without figures, minus infinity for those that do
        not offer the class.
        """
        return table.load_column(
            ('room', name, settings.default_ratio(name)),
            name,
            lambda: self._formula(table, name, settings),
        )

    def _formula(
        self, table: HostTable, name: str, settings: Settings
    ) -> Formula:
        stated = self.ratios(table, settings, name)
        columns = table.resources[name]
        limit = (
            table.capacity(name, settings)
            if stated is None
            else (columns.total - columns.reserved) * stated[1]
        )
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
        name = self.scarcest(table, request, settings)
        # Hosts of an aggregate lack the same: their reason names it.
        if name not in table.resources or name in table.shared:
            return None
        amount = request.resources[name]
        return amount - self.room(table, name, settings), name

    def scarcest(
        self,
        table: HostTable,
        request: Request,
        settings: Settings,
        rows: Any = slice(None),
    ) -> str:
        """Return the class that most of some hosts lack; empty: none does."""
        lacking = {
            name: int(
                np.count_nonzero(
                    self.room(table, name, settings)[rows] < amount
                )
            )
            for name, amount in request.resources.items()
            if name in table.resources
        }
        most = max(lacking, key=lambda name: lacking[name], default='')
        return most if most and lacking[most] else ''

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        reasons = []
        for name, amount in request.resources.items():
            at = np.array([row])
            if all(
                comparison.at(at)[0]
                for comparison in self._class(table, name, amount, settings)
            ):
                continue
            lacks, shared = -np.inf, ''
            if name in table.resources:
                room = float(self.room(table, name, settings)[row])
                lacks = amount - room
                capacity = table.resources[name].used[row] + room
                shared = used_of_aggregate(table, row, name, capacity, room)
            if name not in table.resources:
                near = nearest(name, [*table.resources])
                shared = f'no host offers {name}{near}'
            elif not 0 < lacks < np.inf:
                shared = 'not offered in such units'
            reasons.append(
                f'{amount:,} {name} asked, '
                + (shared or f'lacks {figure(lacks)}')
            )
        return '; '.join(reasons)

    def ratios(
        self, table: HostTable, settings: Settings, name: str = ''
    ) -> tuple[str, Floats] | None:
        """Return the ratios that a filter states for a class, or None."""
        for host_filter in self.stating:
            with errors.naming(host_filter.name):
                stated = host_filter.ratios(table, settings)
            if stated is not None and stated[0] == name:
                return stated
        return None


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
