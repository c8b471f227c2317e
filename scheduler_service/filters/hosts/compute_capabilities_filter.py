"""ComputeCapabilitiesFilter."""

from __future__ import annotations

from typing import Any

import numpy as np

from scheduler_service import specops
from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import EACH_TIME, Key
from scheduler_service.filters.hosts.base import HostFilter
from scheduler_service.filters.support import host_attributes
from scheduler_service.model import Request
from scheduler_service.settings import Settings

SCOPE = 'capabilities'
_ADDRESS_BITS = 'hw:maxphysaddr_bits'
_SIGNS: dict[str, Any] = {
    '=': np.greater_equal,
    '==': np.equal,
    '!=': np.not_equal,
    '>=': np.greater_equal,
    '<=': np.less_equal,
}


class ComputeCapabilitiesFilter(HostFilter):
    """Passes hosts whose capabilities satisfy every extra spec.

    Specs scoped ``capabilities:`` name an attribute of the host or one of
    its ``stats``, and further steps into it; a host without it fails.
    Unscoped specs count where the host has such an attribute. Other scopes
    are ignored. Operators are those of extra specs.
    """

    once = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """AND the specs, each judged once per distinct value."""
        passed: Mask | None = None
        for steps, asked, scoped in _specs(request):
            found = _judge(table, steps, asked, settings)
            if not scoped:
                found = found | ~host_attributes.is_known(
                    table, steps[0], settings
                )
            passed = found if passed is None else passed & found
        return passed

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the specs, unless one of them reads what moves with load."""
        specs = _specs(request)
        if not specs:
            return None
        if any(host_attributes.moves(steps[0]) for steps, _, _ in specs):
            return EACH_TIME
        return tuple((*steps, asked) for steps, asked, _ in specs)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Name the specs that the host does not satisfy."""
        told = []
        for steps, asked, scoped in _specs(request):
            known = host_attributes.is_known(table, steps[0], settings)[row]
            found = _judge(table, steps, asked, settings)
            if not found[row] and (scoped or known):
                told.append(f'{":".join(steps)} is not {asked}')
        return '; '.join(told)


def _specs(request: Request) -> list[tuple[list[str], str, bool]]:
    """Return (steps, requirement, whether scoped) of the specs that count."""
    found = []
    for key, asked in request.flavor.extra_specs.items():
        steps = key.split(':')
        if key == _ADDRESS_BITS:
            steps = [SCOPE, 'cpu_info', 'maxphysaddr', 'bits']
            asked = f'>= {asked}'
        if len(steps) == 1:
            found.append((steps, asked, False))
        elif steps[0] == SCOPE:
            found.append((steps[1:], asked, True))
    return found


def _judge(
    table: HostTable, steps: list[str], asked: str, settings: Settings
) -> Mask:
    """Return bool[n]: hosts that have what the steps name, and it matches."""
    start = host_attributes.column(table, steps[0], settings)
    rest = steps[1:]
    if start is None:
        start = host_attributes.column(table, 'stats', settings)
        rest = steps
    if isinstance(start, np.ndarray) and not rest:
        quick = _compare(start, asked)
        if quick is not None:
            return quick

    def verdict(value: Any) -> bool:
        try:
            for one in rest:
                value = host_attributes.step(value, one)
        except LookupError:
            return False
        return value is not None and specops.match(str(value), asked)

    return host_attributes.as_coded(start).mask_where(verdict)


def _compare(values: Any, asked: str) -> Mask | None:
    """Compare a column of numbers at once, where the operator is numeric."""
    words = asked.split()
    if len(words) < 2 or words[0] not in _SIGNS:
        return None
    passed: Mask = _SIGNS[words[0]](values, float(words[1]))
    return passed
