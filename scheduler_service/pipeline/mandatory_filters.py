"""The filters that every request passes: who is a candidate at all.

They have lower-case names and always run: what the caller insists on, the
traits asked for, and room for every resource class that a claim will take.
The claim itself checks the room again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import Floats, Mask, Rows
from scheduler_service.columns.load import Formula
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.base import (
    Comparison,
    ComparisonFilter,
    HostFilter,
    RowFilter,
    RowSet,
    figure,
)
from scheduler_service.filters.support.capacity import CapacityFilter
from scheduler_service.model import STANDARD_CLASSES, Request
from scheduler_service.pipeline.naming import (
    rows_in_any_case,
    rows_of_nodes,
    rows_with,
)
from scheduler_service.pipeline.scope_filters import Aggregates, Traits
from scheduler_service.settings import Settings


class RequestedDestination(RowFilter):
    """Leaves the host, node or cell that the caller insists on."""

    name = 'requested_destination'
    once = True
    rebuild = True

    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        """Compare names exactly; a cell counts where a move must stay."""
        destination = request.requested_destination
        if destination is None:
            return None
        if destination.host:
            rows = table.rows_of_host(destination.host)
            if destination.node:
                nodes = rows_with(table, 'node', destination.node)
                rows = np.intersect1d(rows, nodes)
            return RowSet(rows, passes=True)
        if destination.node:
            return RowSet(rows_with(table, 'node', destination.node), True)
        if destination.cell and not destination.allow_cross_cell_move:
            cell = rows_with(table, 'cell_uuid', destination.cell)
            return RowSet(cell, passes=True)
        return None

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say that another one is asked for."""
        return 'another host, node or cell is requested'


class IgnoreHosts(RowFilter):
    """Leaves out the hosts that the caller ignores.

    Service hosts in any case, and nodes with their exact names.
    """

    name = 'ignore_hosts'
    once = True
    rebuild = True

    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        """Look the few names up."""
        if not request.ignore_hosts and not request.ignore_nodes:
            return None
        rows = rows_in_any_case(table, request.ignored)
        if request.ignore_nodes:
            nodes = rows_of_nodes(table, request.ignore_nodes)
            rows = np.union1d(rows, nodes)
        return RowSet(rows, passes=False)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say that the caller ignores it."""
        return 'the request ignores this host'


class ForceHosts(RowFilter):
    """Leaves the hosts (any case) and nodes (exact) that are forced."""

    name = 'force_hosts'
    once = True
    rebuild = True

    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        """Look the few names up; where both are given, both must hold."""
        if not request.forced:
            return None
        forced: list[Rows] = []
        if request.force_hosts:
            lower = {name.lower() for name in request.force_hosts}
            forced.append(rows_in_any_case(table, lower))
        if request.force_nodes:
            nodes = [
                rows_with(table, 'node', name) for name in request.force_nodes
            ]
            forced.append(np.unique(np.concatenate(nodes)))
        rows = forced[0]
        if len(forced) > 1:
            rows = np.intersect1d(rows, forced[1])
        return RowSet(rows, passes=True)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say that another one is forced."""
        return 'other hosts or nodes are forced'


class Resources(ComparisonFilter):
    """Leaves hosts with room for every resource class of the claim.

    ``(total - reserved) x ratio - used >= asked`` with the class's unit
    bounds. A host that reports no vCPUs at all counts as not collected.

    :param filters: those that are configured; a class that one of them
        judges completely is left to it
    """

    name = 'resources'

    def __init__(self, filters: Sequence[HostFilter] = ()) -> None:
        self._filters = filters
        self._capacity: dict[str, list[CapacityFilter]] = {}
        for one in filters:
            if isinstance(one, CapacityFilter):
                self._capacity.setdefault(one.resource, []).append(one)

    def comparisons(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Sequence[Comparison]:
        """Compare the room for each class that no filter judges."""
        comparisons: list[Comparison] = []
        # Filters do not run where hosts are forced.
        filters = {} if request.forced else self._capacity
        for name, amount in request.resources.items():
            for one in filters.get(name, ()):
                if one.checks(request, amount):
                    break
            else:
                comparisons += self._class(table, name, amount, settings)
        return comparisons

    def _class(
        self, table: HostTable, name: str, amount: int, settings: Settings
    ) -> list[Comparison]:
        """Return what has to hold for one class."""
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
        comparisons = [Comparison(room, np.greater_equal, amount)]
        if name not in STANDARD_CLASSES:
            units = table.topology.mask(
                ('units', name, amount), lambda: _units(table, name, amount)
            )
            if units is not None:
                comparisons.append(Comparison(units, np.equal, True))
        return comparisons

    def _room(
        self, table: HostTable, name: str, settings: Settings
    ) -> Formula:
        """Return the formula of the room for a class.

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
            return lambda rows: limit[rows] - total[rows] + free(rows) / 1024.0
        used = columns.used
        return lambda rows: limit[rows] - used[rows]

    def miss(
        self, table: HostTable, request: Request, settings: Settings
    ) -> tuple[np.ndarray[Any, Any], str] | None:
        """Return the miss of the class that keeps most hosts out."""
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
        """Name the classes without room, with the figures."""
        reasons = []
        for name, amount in request.resources.items():
            at = np.array([row])
            if all(
                one.at(at)[0]
                for one in self._class(table, name, amount, settings)
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
        for one in self._filters:
            stated = one.ratios(table, settings)
            if stated is not None and stated[0] == name:
                return stated
        return None

    def _limit(
        self, table: HostTable, name: str, settings: Settings
    ) -> Floats:
        columns = table.resources[name]
        stated = self.ratios(table, settings, name)
        if stated is not None:
            limit: Floats = (columns.total - columns.reserved) * stated[1]
            return limit
        if name in STANDARD_CLASSES:
            return table.capacity(name, settings)
        room: Floats = table.topology.memoize(
            ('room', name),
            lambda: (
                (columns.total - columns.reserved)
                * np.nan_to_num(columns.ratio, nan=1.0)
            ),
        )
        return room


def _units(table: HostTable, name: str, amount: int) -> Mask:
    """Return bool[n]: hosts that give the amount of a class in one piece."""
    columns = table.resources[name]
    units: Mask = (columns.min_unit <= amount) & (amount <= columns.max_unit)
    units &= amount % columns.step_size == 0
    return units


MANDATORY_FILTERS: tuple[HostFilter, ...] = (
    RequestedDestination(),
    IgnoreHosts(),
    ForceHosts(),
    Aggregates(),
    Traits(),
)
