"""What a weigher is, and the rule for reading numbers from metadata."""

from __future__ import annotations

from typing import Any, ClassVar

from scheduler_service.columns.table import Floats, HostTable
from scheduler_service.model import Request
from scheduler_service.settings import Settings

# All hosts, or the rows of some: either indexes a column.
Rows = Any


class Weigher:
    """Base of weighers: raw weights for hosts; the pipeline does the rest.

    :cvar name: the name that operators configure; the class's by default
    :cvar multiplier_option: field of the settings that multiplies the
        normalised weight, and metadata key that overrides it by aggregate
    :cvar sign: -1 where the multiplier counts against a host
    :cvar refuses: whether it may refuse a request, and so has to run even
        where its multiplier is 0
    :cvar minval: raw weights below are this, and it is the low end of
        normalising; None: the lowest raw weight is
    :cvar maxval: likewise at the high end
    :cvar depends: on what the raw weight of a host depends, beside the
        request: ``topology``, which moves rarely; ``row``, the host's own
        columns alone; ``request``: where it says nothing, it does so because
        of the request; ``anything``
    :cvar nothing: the raw weight of every host where it says nothing and
        depends on its row
    """

    name: ClassVar[str] = ''
    multiplier_option: ClassVar[str] = ''
    sign: ClassVar[float] = 1.0
    refuses: ClassVar[bool] = False
    minval: ClassVar[float | None] = None
    maxval: ClassVar[float | None] = None
    depends: ClassVar[str] = 'anything'
    nothing: ClassVar[float] = 0.0

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

        :param rows: index array, or ``slice(None)`` for every host
        """
        return None

    def multiplier(self, settings: Settings) -> float:
        """Return the configured multiplier."""
        if not self.multiplier_option:
            return 1.0
        value: float = getattr(settings, self.multiplier_option)
        return value
