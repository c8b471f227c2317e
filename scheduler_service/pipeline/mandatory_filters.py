"""The filters that every request passes: who is a candidate at all.

They have lower-case names and always run: what the caller insists on, and the
traits asked for; and room, see ``room_filter``.
"""

from __future__ import annotations

import numpy as np

from scheduler_service.columns.dictionary import Rows
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.base import (
    HostFilter,
    RowFilter,
    RowSet,
)
from scheduler_service.model import Request
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


MANDATORY_FILTERS: tuple[HostFilter, ...] = (
    RequestedDestination(),
    IgnoreHosts(),
    ForceHosts(),
    Aggregates(),
    Traits(),
)
