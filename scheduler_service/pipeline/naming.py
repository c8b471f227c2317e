"""Rows of the hosts and nodes that a request names. Stateless."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from scheduler_service.columns.dictionary import Rows
from scheduler_service.columns.table import HostTable


def rows_with(table: HostTable, column: str, value: str) -> Rows:
    """Return the rows where a coded column has the value."""
    coded = table.coded[column]
    return np.flatnonzero(coded.codes == coded.code(value))


def rows_of_nodes(table: HostTable, nodes: Iterable[tuple[str, str]]) -> Rows:
    """Return the rows of nodes, given as (service host, node) pairs."""
    found = (table.row_of_node(host, node) for host, node in nodes)
    return np.array([row for row in found if row is not None], np.intp)


def rows_in_any_case(table: HostTable, lower: Collection[str]) -> Rows:
    """Return the rows of service hosts whose names are given in lower case."""
    by_lower = table.lower_hosts()
    names = [name for one in lower for name in by_lower.get(one, ())]
    return table.rows_of_hosts(names)


def has_node(table: HostTable, host: str | None, node: str | None) -> bool:
    """Say whether there is a node of a service host, or either of them.

    :param host: in any case; None: of any service host
    :param node: exact; None: any node
    """
    rows = rows_in_any_case(table, [host.lower()]) if host else None
    if node:
        nodes = rows_with(table, 'node', node)
        rows = nodes if rows is None else np.intersect1d(rows, nodes)
    return rows is None or len(rows) > 0
