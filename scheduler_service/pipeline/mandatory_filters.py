"""The steps before the configured filters: who is a candidate at all.

They have the shape of filters, lower-case names, and always run: what the
caller insists on, the traits asked for, and room for every resource class
that a claim will take. The claim itself checks the room again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import Floats, HostTable
from scheduler_service.filters.hosts.base import HostFilter, figure
from scheduler_service.filters.hosts.capacity import CapacityFilter
from scheduler_service.model import STANDARD_CLASSES, Request
from scheduler_service.request_filters import scope_of
from scheduler_service.settings import Settings


class RequestedDestination(HostFilter):
    """Leaves the host, node or cell that the caller insists on."""

    name = 'requested_destination'
    depends = 'topology'
    once = True
    rebuild = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Exact names; a cell only where the move must stay in it."""
        wanted = request.requested_destination
        if wanted is None:
            return None
        if wanted.host or wanted.node:
            passed = np.ones(len(table), np.bool_)
            if wanted.host:
                passed &= table.mask_of(table.rows_of_host(wanted.host))
            if wanted.node:
                passed &= _is(table, 'node', wanted.node)
            return passed
        if wanted.cell and not wanted.allow_cross_cell_move:
            return _is(table, 'cell_uuid', wanted.cell)
        return None

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say that another one is asked for."""
        return 'another host, node or cell is requested'


class IgnoreHosts(HostFilter):
    """Leaves out the service hosts that the caller ignores, in any case."""

    name = 'ignore_hosts'
    depends = 'topology'
    once = True
    rebuild = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Look the few names up."""
        if not request.ignored:
            return None
        return ~table.mask_of(_rows_in_any_case(table, request.ignored))

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say that the caller ignores it."""
        return 'the request ignores this host'


class ForceHosts(HostFilter):
    """Leaves the hosts (any case) and nodes (exact) that are forced."""

    name = 'force_hosts'
    depends = 'topology'
    once = True
    rebuild = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Both given: both must hold."""
        if not request.forced:
            return None
        passed = np.ones(len(table), np.bool_)
        if request.force_hosts:
            lower = {name.lower() for name in request.force_hosts}
            passed &= table.mask_of(_rows_in_any_case(table, lower))
        if request.force_nodes:
            nodes = np.zeros(len(table), np.bool_)
            for name in request.force_nodes:
                nodes |= _is(table, 'node', name)
            passed &= nodes
        return passed

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Say that another one is forced."""
        return 'other hosts or nodes are forced'


class Aggregates(HostFilter):
    """Leaves hosts in the aggregates that request filters narrowed to."""

    name = 'aggregates'
    depends = 'topology'
    once = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Judge each distinct set of aggregates once."""
        scope = scope_of(request, table.topology.aggregates, settings)
        required = tuple(scope.required_aggregates)
        forbidden = frozenset(scope.forbidden_aggregates)
        if not required and not forbidden:
            return None
        every = table.topology.aggregates

        def verdict(ids: frozenset[int]) -> bool:
            own = {every[one].uuid for one in ids}
            return not own & forbidden and all(own & one for one in required)

        return table.by_aggregates((self.name, required, forbidden), verdict)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Give the query that the host is not an answer to."""
        scope = scope_of(request, table.topology.aggregates, settings)
        return f'the host is not in {scope.query()}'


class Traits(HostFilter):
    """Leaves hosts with every required trait and no forbidden one.

    Those of flavor and image, and those that request filters add.
    """

    name = 'traits'
    depends = 'topology'
    once = True

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Judge each distinct set of traits once."""
        required, forbidden = self._both(table, request, settings)

        def verdict(have: frozenset[str]) -> bool:
            return required <= have and not forbidden & have

        traits = table.coded['trait_set']
        mask: Mask | None = table.topology.remember(
            (self.name, required, forbidden),
            lambda: _unless_all(traits.where(verdict)),
        )
        return mask

    def _both(
        self, table: HostTable, request: Request, settings: Settings
    ) -> tuple[frozenset[str], frozenset[str]]:
        scope = scope_of(request, table.topology.aggregates, settings)
        return (
            request.required_traits | scope.required_traits,
            request.forbidden_traits | scope.forbidden_traits,
        )

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Name the traits that are missing or forbidden."""
        have = table.coded['trait_set'].at(row)
        required, forbidden = self._both(table, request, settings)
        lacks = sorted(required - have)
        bad = sorted(forbidden & have)
        told = [f'lacks {name}' for name in lacks]
        return '; '.join(told + [f'has the forbidden {name}' for name in bad])


class Resources(HostFilter):
    """Leaves hosts with room for every resource class of the claim.

    ``(total - reserved) x ratio - used >= asked`` with the class's unit
    bounds. A host that reports no vCPUs at all counts as not collected.
    """

    name = 'resources'
    depends = 'row'

    def __init__(self, filters: Sequence[HostFilter] = ()) -> None:
        self.filters = filters

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """AND the classes asked for that no configured filter looks at."""
        passed: Mask | None = None
        for name, amount in request.resources.items():
            if self._checked(request, name, amount):
                continue
            fits = self._fits(table, name, amount, settings)
            passed = fits if passed is None else passed & fits
        return passed

    def _checked(self, request: Request, name: str, amount: int) -> bool:
        """Whether a filter that ran says all there is to say of a class."""
        return not request.forced and any(
            isinstance(one, CapacityFilter)
            and one.resource == name
            and one.checks(request, amount)
            for one in self.filters
        )

    def _fits(
        self, table: HostTable, name: str, amount: int, settings: Settings
    ) -> Mask:
        if name not in table.resources:
            return np.zeros(len(table), np.bool_)
        fits: Mask = self.lacks(table, name, amount, settings) <= 0
        if name == 'VCPU':
            fits |= table.resources[name].total == 0
        elif name not in STANDARD_CLASSES:
            columns = table.resources[name]
            fits &= (columns.total >= 0) & (columns.min_unit <= amount)
            fits &= amount <= columns.max_unit
            fits &= amount % columns.step_size == 0
        return fits

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
        told = []
        for name, amount in request.resources.items():
            if not self._fits(table, name, amount, settings)[row]:
                offered = name in table.resources and (
                    table.resources[name].total[row] >= 0
                )
                missing = (
                    self.lacks(table, name, amount, settings)[row]
                    if offered
                    else 0
                )
                told.append(
                    f'{amount} {name} asked, lacks {figure(missing)}'
                    if missing > 0
                    else f'{amount} {name} asked, not offered in such units'
                )
        return '; '.join(told)

    def lacks(
        self, table: HostTable, name: str, amount: int, settings: Settings
    ) -> np.ndarray[Any, Any]:
        """Return what each host lacks of *amount*, float64[n]; <= 0: fits."""
        columns = table.resources[name]
        used: Any = columns.used
        if name == 'DISK_GB':
            free = columns.total - used
            least = table.number('disk_available_least')
            used = columns.total - np.fmin(free, least)
        limit = self._limit(table, name, settings)
        missing: np.ndarray[Any, Any] = amount + used - limit
        return missing

    def ratios(
        self, table: HostTable, settings: Settings, name: str = ''
    ) -> tuple[str, Floats] | None:
        """Return the ratios that a filter states for a class, or None."""
        for one in self.filters:
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
        room: Floats = table.topology.remember(
            ('room', name),
            lambda: (
                (columns.total - columns.reserved)
                * np.nan_to_num(columns.ratio, nan=1.0)
            ),
        )
        return room


def _unless_all(mask: Mask) -> Mask | None:
    """Return None for a mask that passes everybody."""
    return None if mask.all() else mask


def _is(table: HostTable, column: str, value: str) -> Mask:
    """Return bool[n], true where a coded column has the value."""
    coded = table.coded[column]
    same: Mask = coded.codes == coded.code(value)
    return same


def _rows_in_any_case(table: HostTable, lower: Any) -> Any:
    by_lower = table.lower_hosts()
    names = [name for one in lower for name in by_lower.get(one, ())]
    return table.rows_of_hosts(names)


MANDATORY_FILTERS: tuple[HostFilter, ...] = (
    RequestedDestination(),
    IgnoreHosts(),
    ForceHosts(),
    Aggregates(),
    Traits(),
)
