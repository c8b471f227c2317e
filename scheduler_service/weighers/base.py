"""Base classes of weighers, which return raw weights of hosts.

Weighers hold no state of requests: any thread may call them.
"""

from __future__ import annotations

import abc
from collections import Counter
from typing import Any, ClassVar

import numpy as np

from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.table import HostTable
from scheduler_service.columns.topology import EACH_TIME, Key
from scheduler_service.model import Request
from scheduler_service.settings import Settings

# All hosts, or the rows of some: either indexes a column.
Rows = Any


class Weigher:
    """Base of weighers.

    :cvar name: the name that operators configure; the class's by default
    :cvar multiplier_option: field of the settings that multiplies the
        normalised weight, and metadata key that overrides it by aggregate
    :cvar sign: -1 where the multiplier counts against a host
    :cvar refuses: whether it may refuse a request, and so has to run even
        where its multiplier is 0
    :cvar minval: least raw weight, and low end of the normalised range; None:
        the lowest raw weight is the low end
    :cvar maxval: likewise at the high end
    """

    name: ClassVar[str] = ''
    multiplier_option: ClassVar[str] = ''
    sign: ClassVar[float] = 1.0
    refuses: ClassVar[bool] = False
    minval: ClassVar[float | None] = None
    maxval: ClassVar[float | None] = None

    def __init_subclass__(cls) -> None:
        if 'name' not in cls.__dict__:
            cls.name = cls.__name__

    def weights(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Floats | None:
        """Return raw weights of all hosts, float64[n]; None: no opinion.

        NaN: the host cannot be weighed. It gets the worst weight of all.
        """
        return None

    def weigh(
        self,
        table: HostTable,
        rows: Rows,
        request: Request,
        settings: Settings,
    ) -> Floats | None:
        """Return raw weights of *rows*, by default of :meth:`weights`.

        :param rows: index array, or ``slice(None)`` for every host
        """
        weights = self.weights(table, request, settings)
        return None if weights is None else weights[rows]

    def weight_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return the key under which the raw weights are kept.

        ``EACH_TIME``, the default: they are computed for every request. None:
        the weigher has no opinion on this request. Any other value: everything
        that they read of the request. They must then not read the load or the
        instances of hosts: they are computed once and kept until hosts or
        aggregates change.
        """
        return EACH_TIME

    def multiplier(self, settings: Settings) -> float:
        """Return the configured multiplier."""
        if not self.multiplier_option:
            return 1.0
        value: float = getattr(settings, self.multiplier_option)
        return value


class ColumnWeigher(Weigher, abc.ABC):
    """Base of weighers by a column of load, the same for every request."""

    @abc.abstractmethod
    def column(self, table: HostTable, settings: Settings) -> Floats:
        """Return raw weights of all hosts, [n]; they follow load.

        Already inside ``minval`` and ``maxval``.
        """

    def weights(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Floats:
        return self.column(table, settings)


class ServerGroupWeigher(Weigher):
    """Weighs hosts by the members of the request's server groups on them.

    :cvar policy: policy of the server groups that are weighed
    :cvar weight_per_member: raw weight of one member
    """

    policy: ClassVar[str] = ''
    weight_per_member: ClassVar[float] = 1.0

    def weights(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Floats | None:
        """Return the members times their weight; None for other policies."""
        groups = table.groups_for(request, self.policy)
        if not groups:
            return None
        counts = Counter[str]()
        for group in groups:
            members = table.instances.among(group.members).values()
            present = Counter(member.host for member in members)
            for host in request.hosts_named_for(group.uuid):
                present.setdefault(host, 1)
            counts += present
        weights = np.zeros(len(table))
        for host, count in counts.items():
            weights[table.rows_of_host(host)] = self.weight_per_member * count
        return weights

    def weight_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return None where no instance of the request has a server group."""
        has_group = request.instance_group or request.stored_groups
        return EACH_TIME if has_group else None
