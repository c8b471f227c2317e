"""What a weigher is: raw weights of hosts; the pipeline does the rest.

Weighers hold no state of requests: any thread may ask them.
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar

from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.table import HostTable
from scheduler_service.dependence import EACH_TIME, Key
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
    :cvar minval: raw weights below are this, and it is the low end of
        normalising; None: the lowest raw weight is
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

    def weigh(
        self,
        table: HostTable,
        rows: Rows,
        request: Request,
        settings: Settings,
    ) -> Floats | None:
        """Return raw weights of *rows*, float64; None: no opinion.

        NaN: the host cannot be weighed. It gets the worst weight of all.

        :param rows: index array, or ``slice(None)`` for every host
        """
        return None

    def weight_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        """Return what the raw weights depend on, beside what hosts are.

        ``EACH_TIME``, the default: they are asked for with every request.
        None: the weigher has no opinion on this request. Any other value:
        all that they read of the request; they look at nothing of hosts
        that moves with their load or their instances, so they are asked for
        once and kept until hosts or aggregates change.
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
        """Return raw weights of all hosts, [n], kept true under load.

        Already inside ``minval`` and ``maxval``.
        """

    def weigh(
        self,
        table: HostTable,
        rows: Rows,
        request: Request,
        settings: Settings,
    ) -> Floats | None:
        """Return rows of the column."""
        weights: Floats = self.column(table, settings)[rows]
        return weights
