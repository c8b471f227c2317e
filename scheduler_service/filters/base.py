"""Base classes of host filters, in the four forms that a filter can have.

A filter returns a mask over all hosts, or None where every host passes. A
rejection is a value; a fault is an exception, and fails the request with an
error that names the filter. Filters hold no state of requests: any thread may
call them.

Capabilities, CPU information, statistics and the like are free text of the
hosts. A filter that cannot read the text of a host rejects that host, with
the reason; other hosts are not affected.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from scheduler_service.columns.dictionary import Floats, Mask, Rows
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import EACH_TIME, Key
from scheduler_service.model import Request
from scheduler_service.model.requirements.specs import FAULTS
from scheduler_service.settings import Settings

#: The beginning of such a host's reason.
UNREADABLE = 'the host cannot be evaluated: '


class HostFilter:
    """Base of filters that evaluate all hosts at once.

    Override :meth:`mask` and :meth:`reason`; the rest has sensible defaults.

    :cvar name: the name that operators configure; the class's by default
    :cvar once: runs for the first instance of a request only, because what
        it looks at does not change while the request is placed
    :cvar rebuild: runs also when a rebuild in place is checked
    :cvar by_name: checks what a request names: hosts, zones, aggregates,
        groups and traits; a host that fails it is no near miss
    :cvar policy: policy of server groups that claims enforce with the filter
    :cvar why: the reason of every host that fails, unless ``reason`` says more
    :cvar vectorised: false for a filter that visits hosts one by one; such
        filters run last
    :cvar mandatory: no option leaves it out, and it is counted only where it
        restricts the request
    """

    name: ClassVar[str] = ''
    mandatory: ClassVar[bool] = False
    once: ClassVar[bool] = False
    rebuild: ClassVar[bool] = False
    by_name: ClassVar[bool] = False
    vectorised: ClassVar[bool] = True
    policy: ClassVar[str] = ''
    why: ClassVar[str] = 'does not pass'

    def __init_subclass__(cls) -> None:
        if 'name' not in cls.__dict__:
            cls.name = cls.__name__

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        """Return bool[n], true where a host passes; None: all pass.

        :raises Exception: any; it fails the request and names the filter
        """
        return None

    def mask_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the key under which the mask is kept.

        ``EACH_TIME``, the default: the mask is computed for every request.
        None: every host passes for this request. Any other value: everything
        that the mask reads of the request. The mask must then not read the
        load or the instances of hosts: it is computed once and kept until
        hosts or aggregates change.
        """
        return EACH_TIME

    def has_devices(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> bool:
        """Whether the host of *row*, which passes, has the requested devices.

        :param request: that names the providers of its PCI devices
        """
        return True

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        """Return, as a sentence with facts, why the host of *row* fails."""
        return self.why

    def miss(
        self, table: HostTable, request: Request, settings: Settings
    ) -> tuple[np.ndarray[Any, Any], str] | None:
        """Return (float64[n] of what each host lacks, unit), or None.

        Only filters on capacity have a nearest miss.
        """
        return None

    def never(
        self, table: HostTable, request: Request, settings: Settings
    ) -> str:
        """Return why no host can ever pass, however empty; empty: one may."""
        return ''

    def limits(
        self, table: HostTable, row: int, settings: Settings
    ) -> dict[str, float]:
        """Return what the host may use in all, by limit name.

        It depends on what the host is, not on its load or on a request.
        """
        return {}

    def numa_limits(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> dict[str, float]:
        """Return allocation ratios by which a request fits on NUMA cells.

        Empty where it requests no such cells.
        """
        return {}

    def ratios(
        self, table: HostTable, settings: Settings
    ) -> tuple[str, Floats] | None:
        """Return (resource class, float64[n] of allocation ratios), or None.

        A claim then takes these instead of the hosts' own.
        """
        return None


class KeyFilter(HostFilter, abc.ABC):
    """Base of filters by their :meth:`mask_key`, which has all that they need.

    They are evaluated once for each key that is neither None nor
    ``EACH_TIME``.
    """

    @abc.abstractmethod
    def passing(self, table: HostTable, key: Any) -> Mask:
        """Return bool[n], true where a host passes."""

    @abc.abstractmethod
    def failure(self, table: HostTable, row: int, key: Any) -> str:
        """Return why the host of *row* fails."""

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        key = self.mask_key(table, request, settings)
        return None if key is None else self.passing(table, key)

    def reason(
        self, table: HostTable, row: int, request: Request, settings: Settings
    ) -> str:
        key = self.mask_key(table, request, settings)
        return self.failure(table, row, key)


class Comparison(NamedTuple):
    """A column compared with a value: hosts pass where it holds.

    :ivar column: [n], a column that follows load
    :ivar operator: a NumPy comparison such as ``np.greater_equal``
    :ivar value: a scalar for all hosts, or [n]
    """

    column: np.ndarray[Any, Any]
    operator: Callable[..., Any]
    value: Any

    def at(self, rows: Rows) -> Mask:
        """Return bool[m]: whether hosts of some rows pass."""
        value = self.value
        if isinstance(value, np.ndarray):
            value = value[rows]
        mask: Mask = self.operator(self.column[rows], value)
        return mask


class ComparisonFilter(HostFilter, abc.ABC):
    """Base of filters that compare columns of load with values.

    Such a filter is evaluated again only for hosts whose load changed.
    """

    @abc.abstractmethod
    def comparisons(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Sequence[Comparison]:
        """Return the comparisons; empty: every host passes."""

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        passed: Mask | None = None
        for column, operator, value in self.comparisons(
            table, request, settings
        ):
            mask = operator(column, value)
            passed = mask if passed is None else passed & mask
        return passed


class RowSet(NamedTuple):
    """A few hosts that a filter names.

    :ivar rows: int64[m]
    :ivar passes: true: these hosts alone pass; false: all others pass
    """

    rows: Rows
    passes: bool


class RowFilter(HostFilter, abc.ABC):
    """Base of filters that name a few hosts, by name or by their instances.

    The filter runs with every request, at no cost for other hosts.
    """

    by_name = True

    @abc.abstractmethod
    def row_set(
        self, table: HostTable, request: Request, settings: Settings
    ) -> RowSet | None:
        """Return the hosts that are named; None: every host passes."""

    def mask(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Mask | None:
        row_set = self.row_set(table, request, settings)
        if row_set is None:
            return None
        mask = np.full(len(table), not row_set.passes)
        mask[row_set.rows] = row_set.passes
        return mask


class OneHostFilter(HostFilter):
    """Base of filters written for one host at a time.

    Override ``host_passes(host_state, request)``. Such a filter runs last,
    over the hosts still in.
    """

    vectorised = False

    def host_passes(self, host_state: HostState, request: Request) -> bool:
        """Return whether one host passes."""
        return True

    def passing(self, table: HostTable, request: Request, among: Mask) -> Mask:
        """Return the part of *among* that passes; bool[n]."""
        passed = among.copy()
        for row in np.flatnonzero(among):
            state = HostState(table, int(row))
            passed[row] = bool(self.host_passes(state, request))
        return passed


class AdaptedHostFilter(OneHostFilter):
    """Any object with ``host_passes(host_state, spec)``, as a filter here."""

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped
        # The configured name is the wrapped class's own.
        self.name = type(wrapped).__name__  # type: ignore[misc]

    def host_passes(self, host_state: HostState, request: Request) -> bool:
        return bool(self.wrapped.host_passes(host_state, request))


class HostState:
    """One host, with the attribute names that custom filters expect.

    Read-only: built anew for each host that such a filter looks at.
    """

    __slots__ = ('_row', '_table')

    def __init__(self, table: HostTable, row: int) -> None:
        self._table = table
        self._row = row

    def __getattr__(self, name: str) -> Any:
        table, row = self._table, self._row
        if name in table.coded:
            return table.coded[name].at(row)
        if name in table.numbers:
            return table.numbers[name][row].item()
        if name in _FIGURES:
            resource, column = _FIGURES[name]
            return int(getattr(table.resources[resource], column)[row])
        raise AttributeError(name)

    @property
    def nodename(self) -> str:
        """The node's name."""
        return self._table.node_at(self._row)

    hypervisor_hostname = nodename

    @property
    def free_ram_mb(self) -> int:
        """Memory not used, MB; may be negative."""
        ram = self._table.resources['MEMORY_MB']
        return int(ram.total[self._row] - ram.used[self._row])

    @property
    def free_disk_mb(self) -> int:
        """Disk not used, MB; may be negative."""
        return int(self._table.free_disk_mb()[self._row])

    @property
    def disk_mb_used(self) -> int:
        """Disk used, MB."""
        return int(self._table.resources['DISK_GB'].used[self._row]) * 1024

    @property
    def traits(self) -> frozenset[str]:
        """Names of the host's traits."""
        names: frozenset[str] = self._table.coded['trait_set'].at(self._row)
        return names

    @property
    def aggregates(self) -> list[Any]:
        """Aggregates that the host is in, documents of the inventory."""
        ids = self._table.coded['aggregate_set'].at(self._row)
        return [
            self._table.topology.aggregates[aggregate_id]
            for aggregate_id in sorted(ids)
        ]

    @property
    def instances(self) -> dict[str, Any]:
        """Instances on the service host, by uuid."""
        instances = self._table.instances.on_host(self.host)
        return {instance.uuid: instance for instance in instances}


_FIGURES = {
    'vcpus_total': ('VCPU', 'total'),
    'vcpus_used': ('VCPU', 'used'),
    'total_usable_ram_mb': ('MEMORY_MB', 'total'),
    'memory_mb_used': ('MEMORY_MB', 'used'),
    'total_usable_disk_gb': ('DISK_GB', 'total'),
    'local_gb_used': ('DISK_GB', 'used'),
}


def where_readable(
    predicate: Callable[..., bool],
    faults: tuple[type[Exception], ...] = FAULTS,
) -> Callable[..., bool]:
    """Return a predicate that is false of values that cannot be read.

    The predicate must not parse the request: such faults would be hidden.
    """

    def passes(*values: Any) -> bool:
        try:
            return predicate(*values)
        except faults:
            return False

    return passes


def why_unreadable(
    predicate: Callable[..., object], what: str, *values: Any
) -> str:
    """Return the reason where a predicate cannot be applied, '' where it can.

    :param predicate: any function that reads the values
    :param what: the data that is read, in words
    """
    try:
        predicate(*values)
    except FAULTS as fault:
        return f'{UNREADABLE}{what}: {type(fault).__name__}: {fault}'
    return ''


#: Of an extra spec that is compared.
REQUIREMENT = 'a value, or an operator with a value, such as ">= 4"'
