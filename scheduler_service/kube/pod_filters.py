"""Filters of nodes that apply to a kube-scheduler's pods alone.

A kube-scheduler checks processors, memory, storage, the number of pods, and
the state and taints of nodes itself before it calls. It skips extended
resources that it was configured to ignore, and does not say which: so those
of ``[kubernetes] managed_resources``, by default those that some host offers,
are checked here against the size of hosts. What is free depends on pods;
:mod:`kube.pod_load` checks that.

Stateless: any thread may call the filters, on a table of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler_service.columns import HostTable
from scheduler_service.columns.dictionary import Floats, Mask
from scheduler_service.columns.load import Formula
from scheduler_service.columns.topology import Key
from scheduler_service.filters.base import Comparison, HostFilter
from scheduler_service.filters.capacity import CapacityFilter, CountFilter
from scheduler_service.filters.hosts.compute_filter import ComputeFilter
from scheduler_service.kube.node_reader import is_checked_by_scheduler
from scheduler_service.model import STANDARD_CLASSES, Request
from scheduler_service.settings import Settings
from scheduler_service.texts import figure

# Filters that depend on load, which changes as pods come and go.
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

    Agents have to run on nodes that are cordoned or not ready yet: a
    kube-scheduler has checked each pod's tolerations.
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

    Use does not count: no eviction helps a host that is too small.
    """

    name = 'offered_resources'
    once = True

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the classes with the requested amounts."""
        amounts = _extended(request)
        return frozenset(amounts.items()) if amounts else None

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask:
        """Compare the size of hosts, and the bounds of single amounts."""
        fits = np.ones(len(table), np.bool_)
        for name, amount in _extended(request).items():
            fits &= _size(table, name, settings) >= amount
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
            size = float(max(0.0, _size(table, name, settings)[row]))
            if size < amount:
                reasons.append(
                    f'{amount} {name} requested, {figure(size)} offered'
                )
        return (
            '; '.join(reasons)
            or 'the amount is outside min_unit, max_unit and step_size'
        )


def _extended(request: Request) -> dict[str, int]:
    return {
        name: amount
        for name, amount in request.resources.items()
        if name not in STANDARD_CLASSES
    }


def _size(table: HostTable, name: str, settings: Settings) -> Floats:
    """Return what hosts offer of a class, float64[n]; -1: not offered."""
    columns = table.resources.get(name)
    if columns is None:
        return np.full(len(table), -1.0)
    return np.where(columns.total < 0, -1.0, table.capacity(name, settings))


def may_pass_later(host_filter: HostFilter) -> bool:
    """Whether a filter depends on load, so that evicting pods may help."""
    return (
        isinstance(host_filter, CapacityFilter | CountFilter)
        or host_filter.name in _MAY_PASS_LATER
    )
