"""Base classes of filters on free capacity, and on counts."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from scheduler_service.columns.dictionary import Floats, Mask
from scheduler_service.columns.load import Formula
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.base import (
    Comparison,
    ComparisonFilter,
)
from scheduler_service.model import Request
from scheduler_service.model.inventory import provider_of
from scheduler_service.settings import Settings
from scheduler_service.texts import figure


def used_of_aggregate(
    table: HostTable, row: int, name: str, capacity: float, free: float
) -> str:
    """Return how much of what an aggregate gives a host is used.

    :param free: of the capacity
    :return: empty: no aggregate gives it the class
    """
    for provider in table.providers(row, [name]).values():
        giver = table.topology.aggregates[provider_of(provider)].name
        return (
            f'{figure(capacity - free)} of {figure(capacity)} {name} of '
            f'aggregate {giver} are used'
        )
    return ''


class CapacityFilter(ComparisonFilter, abc.ABC):
    """Passes hosts where ``limit - used`` is at least what is requested.

    The limit is the host's total times its allocation ratio. Without
    ``allow_self_overcommit`` the total, too, has to be at least what is
    requested. A subclass names the resource class and the amounts. With a
    ``ratio_key`` the ratio of a host is the least that its aggregates state in
    their metadata. The host's own ratio counts where they state none, and
    where one of several values is not a number.

    :cvar resource: resource class that is compared, such as ``VCPU``
    :cvar limit_name: key under which :meth:`limits` reports the limit
    :cvar unit: unit of all amounts, as reasons show it
    :cvar units: how many of these are one unit of the resource class
    :cvar ratio_key: metadata key of the ratio of aggregates, if any
    """

    resource: ClassVar[str] = ''
    limit_name: ClassVar[str] = ''
    unit: ClassVar[str] = ''
    units: ClassVar[int] = 1
    ratio_key: ClassVar[str] = ''

    def requested(self, request: Request) -> int:
        """Return what a claim takes, in the filter's unit."""
        return request.resources.get(self.resource, 0)

    def total(self, table: HostTable) -> Any:
        """Return the size of each host, int64[n], in the filter's unit."""
        return table.resources[self.resource].total

    def used(self, table: HostTable) -> Formula:
        """Return the formula of the used amount, in the filter's unit."""
        used = table.resources[self.resource].used
        return lambda rows: used[rows]

    def limit(self, table: HostTable, settings: Settings) -> Floats:
        """Return how much of each host may be used in all, float64[n]."""
        stated = self.ratios(table, settings)
        if stated is None:
            return table.capacity(self.resource, settings)
        total = table.resources[self.resource].total
        default = settings.default_ratio(self.resource)
        return table.topology.memoize(
            ('aggregate limit', self.name, default), lambda: total * stated[1]
        )

    def exempt(self, table: HostTable) -> Mask | None:
        """Return hosts that pass any request, bool[n]; None: no host."""
        return None

    def comparisons(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Sequence[Comparison]:
        requested = self.requested(request)
        return [
            Comparison(column, np.greater_equal, requested)
            for column in self._columns(table, settings)
        ]

    def _columns(self, table: HostTable, settings: Settings) -> list[Floats]:
        """Return what is left of hosts and, where it counts, their size.

        Infinite for hosts that are exempt.
        """

        def left() -> Formula:
            limit, used = self.limit(table, settings), self.used(table)
            return exempting(lambda rows: limit[rows] - used(rows))

        def size() -> Formula:
            total = self.total(table) * 1.0
            return exempting(lambda rows: total[rows])

        def exempting(formula: Formula) -> Formula:
            exempt = self.exempt(table)
            if exempt is None or not exempt.any():
                return formula
            return lambda rows: np.where(exempt[rows], np.inf, formula(rows))

        formulas = {'remaining': left}
        if not settings.allow_self_overcommit:
            formulas['total'] = size
        ratio = settings.default_ratio(self.resource)
        return [
            table.load_column((self.name, name, ratio), self.resource, make)
            for name, make in formulas.items()
        ]

    def miss(
        self, table: HostTable, request: Request, settings: Settings
    ) -> tuple[np.ndarray[Any, Any], str] | None:
        columns = self._columns(table, settings)
        return self.requested(request) - np.minimum.reduce(columns), self.unit

    def never(
        self, table: HostTable, request: Request, settings: Settings
    ) -> str:
        size, exempt = self.limit(table, settings), self.exempt(table)
        if not settings.allow_self_overcommit:
            size = np.minimum(size, self.total(table))
        most = float(size.max(initial=0))
        if self.requested(request) <= most or np.any(exempt):
            return ''
        largest = f'{figure(most)} {self.unit}'
        return f'can never fit: no host takes more than {largest}'

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        requested = self.requested(request)
        total = self.total(table)[row]
        if not settings.allow_self_overcommit and requested > total:
            return (
                f'{requested:,} {self.unit} requested, more than the '
                f'{figure(total)} that the host has in all'
            )
        limit = self.limit(table, settings)[row]
        used = self.used(table)(row)
        return (
            f'{requested:,} {self.unit} requested, {figure(limit - used)} '
            f'free (limit {figure(limit)}, {figure(used)} used)'
        )

    def limits(
        self, table: HostTable, row: int, settings: Settings
    ) -> dict[str, float]:
        limit = float(self.limit(table, settings)[row])
        return {self.limit_name: limit / self.units}

    def ratios(
        self, table: HostTable, settings: Settings
    ) -> tuple[str, Floats] | None:
        """Return (resource class, float64[n]): the ratios for claims."""
        key = self.ratio_key
        # -inf where no aggregate states one, or one of several is no number.
        stated = table.least_stated(key, -np.inf, float) if key else None
        if stated is None:
            return None
        default = settings.default_ratio(self.resource)
        own = table.resources[self.resource].ratios
        ratios: Floats = table.topology.memoize(
            ('claim ratio', self.name, default),
            lambda: np.where(np.isneginf(stated), own(default), stated),
        )
        return self.resource, ratios


class CountFilter(ComparisonFilter):
    """Passes hosts where a count is below a limit.

    :cvar column: name of the column of counts in the host table
    :cvar option: name of the limit in the settings, and the metadata key
        that aggregates use for it
    :cvar unit: what is counted, as reasons show it
    :cvar by_aggregate: whether the limit is the least that the aggregates of
        a host state; the option counts where they state none, and where one
        of several values is not a whole number
    """

    column: ClassVar[str] = ''
    option: ClassVar[str] = ''
    unit: ClassVar[str] = ''
    by_aggregate: ClassVar[bool] = False

    def limit(self, table: HostTable, settings: Settings) -> Any:
        """Return the limit: a number for all hosts, or an array [n]."""
        default = getattr(settings, self.option)
        if not self.by_aggregate:
            return default
        stated = table.least_stated(self.option, default, int)
        return default if stated is None else stated

    def comparisons(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Sequence[Comparison]:
        count = table.count_column(self.column)
        return (Comparison(count, np.less, self.limit(table, settings)),)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        limit = self.limit(table, settings)
        host_limit = limit if isinstance(limit, int | float) else limit[row]
        count = table.number(self.column)[row]
        return (
            f'the host has {count} {self.unit}, and must have fewer than '
            f'{figure(host_limit)}'
        )


class ExactCapacityFilter(ComparisonFilter, abc.ABC):
    """Passes hosts where exactly the requested amount is free.

    Allocation ratios are not applied: free is the total less what is used.

    :cvar resource: resource class that is compared
    :cvar unit: unit of the amounts, as reasons show it
    """

    resource: ClassVar[str] = ''
    unit: ClassVar[str] = ''

    def requested(self, request: Request) -> int:
        """Return what a claim takes, in the filter's unit."""
        return request.resources.get(self.resource, 0)

    @abc.abstractmethod
    def free(self, table: HostTable) -> Any:
        """Return the free amount of each host, [n], in the filter's unit.

        A column that is kept up to date with the load.
        """

    def comparisons(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Sequence[Comparison]:
        requested = self.requested(request)
        return (Comparison(self.free(table), np.equal, requested),)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        free = figure(self.free(table)[row])
        return (
            f'exactly {self.requested(request):,} {self.unit} must be free, '
            f'{free} are'
        )
