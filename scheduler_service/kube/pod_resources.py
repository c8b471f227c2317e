"""Whether nodes offer the extended resources of a pod at all.

A kube-scheduler checks processors, memory, storage and the number of pods
itself before it asks. Of an extended resource that it was told to ignore it
checks nothing, and it does not say which those are: so each is checked here.
What is free of them depends on pods, and :mod:`engine.pod_load` compares it.

Stateless: any thread may ask, on a table of its own.
"""

from __future__ import annotations

import numpy as np

from scheduler_service.columns import HostTable
from scheduler_service.columns.dictionary import Floats, Mask
from scheduler_service.columns.topology import Key
from scheduler_service.filters.base import HostFilter, figure
from scheduler_service.model import STANDARD_CLASSES, Request
from scheduler_service.settings import Settings


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
        asked = _extended(request)
        return frozenset(asked.items()) if asked else None

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
