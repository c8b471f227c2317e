"""Filters of nodes for pods that a kube-scheduler sends, in their own way.

A kube-scheduler checks processors, memory, storage, the number of pods, and
the state and the taints of nodes itself before it calls. Of an extended
resource that it was configured to ignore it checks nothing, and it does not
say which those are: so each is checked here. What is free of them depends on
pods, and :mod:`kube.pod_load` compares it.

Stateless: any thread may call, on a table of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler_service.columns import HostTable
from scheduler_service.columns.dictionary import Floats, Mask
from scheduler_service.columns.load import Formula
from scheduler_service.columns.topology import Key
from scheduler_service.filters.base import Comparison, HostFilter, figure
from scheduler_service.filters.capacity import CapacityFilter, CountFilter
from scheduler_service.filters.hosts.compute_filter import ComputeFilter
from scheduler_service.kube.node_reader import is_checked_by_scheduler
from scheduler_service.model import STANDARD_CLASSES, Request
from scheduler_service.settings import Settings

# Filters that look at load, which changes as pods come and go.
_MAY_PASS_LATER = frozenset(
    (
        'RetryFilter',
        'MetricsFilter',
        'ServerGroupAffinityFilter',
        'ServerGroupAntiAffinityFilter',
        'GroupAffinityFilter',
        'GroupAntiAffinityFilter',
        'DifferentHostFilter',
        'SameHostFilter',
        'TypeAffinityFilter',
    )
)


class PodComputeFilter(ComputeFilter):
    """Leaves hosts that no operator of this service disabled.

    Agents have to run on nodes that are not ready yet, and on cordoned ones:
    a kube-scheduler has checked what each pod tolerates.
    """

    name = 'ComputeFilter'

    def comparisons(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Sequence[Comparison]:
        """Compare the column of hosts that no operator disabled here."""

        def make() -> Formula:
            enabled = table.number('enabled')
            checked = table.coded['disabled_reason'].mask_where(
                is_checked_by_scheduler
            )
            return lambda rows: enabled[rows] | checked[rows]

        column = table.load_column('enabled for pods', 'enabled', make)
        return (Comparison(column, np.equal, True),)


class OfferedResources(HostFilter):
    """Leaves hosts that are large enough for each extended resource.

    Whatever is used on them: no eviction helps a host that is too small.
    """

    name = 'offered_resources'
    once = True

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the classes with the amounts asked."""
        amounts = _extended(request)
        return frozenset(amounts.items()) if amounts else None

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask:
        """Compare the size of hosts, and the units that they give."""
        fits = np.ones(len(table), np.bool_)
        for name, amount in _extended(request).items():
            fits &= _size(table, name) >= amount
            columns = table.resources.get(name)
            if columns is not None:
                fits &= columns.min_unit <= amount
                fits &= columns.max_unit >= amount
                fits &= amount % columns.step_size == 0
        return fits

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Name the classes with the figures."""
        reasons = []
        for name, amount in _extended(request).items():
            size = float(max(0.0, _size(table, name)[row]))
            if size < amount:
                reasons.append(
                    f'{amount} {name} asked, {figure(size)} offered'
                )
        return '; '.join(reasons) or 'an amount is not given in one piece'


def _extended(request: Request) -> dict[str, int]:
    return {
        name: amount
        for name, amount in request.resources.items()
        if name not in STANDARD_CLASSES
    }


def _size(table: HostTable, name: str) -> Floats:
    """Return what hosts offer of a class, float64[n]; -1: it is not there."""
    columns = table.resources.get(name)
    if columns is None:
        return np.full(len(table), -1.0)
    ratio = np.nan_to_num(columns.ratio, nan=1.0)
    size = (columns.total - columns.reserved) * ratio
    return np.where(columns.total < 0, -1.0, size)


def may_pass_later(host_filter: HostFilter) -> bool:
    """Whether a filter looks at load, and evicting pods may help."""
    return (
        isinstance(host_filter, CapacityFilter | CountFilter)
        or host_filter.name in _MAY_PASS_LATER
    )
