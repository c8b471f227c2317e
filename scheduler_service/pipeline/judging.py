"""What filters said in a pass, and whether it can be followed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table import HostTable
from scheduler_service.filters.hosts.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.settings import Settings


@dataclasses.dataclass(slots=True)
class Judged:
    """One filter's say in a pass.

    :ivar mask: bool[n], None where it says nothing
    :ivar moves: whether it has to be asked again of rows that changed
    :ivar told: whether it is named where the pass is explained
    """

    one: HostFilter
    mask: Mask | None
    moves: bool
    told: bool

    @classmethod
    def of(
        cls,
        one: HostFilter,
        mask: Mask | None,
        request: Request,
        settings: Settings,
    ) -> Judged | None:
        """Return the say, or None where it cannot be followed."""
        told = mask is not None or one.name[0].isupper()
        if one.depends == 'row':
            return cls(one, mask, mask is not None, told)
        fixed = (
            one.depends == 'topology'
            or one.shape(request, settings) is not None
        )
        asked = one.depends == 'request' or (
            type(one).shape is not HostFilter.shape
        )
        if fixed or (mask is None and asked):
            return cls(one, mask, False, told)
        return None


def stages(table: HostTable, judged: Sequence[Judged]) -> Any:
    """Return int16[n]: the first filter that keeps each host out.

    The number of filters for one that passes all.
    """
    stage = np.full(len(table), len(judged), np.int16)
    for at in range(len(judged) - 1, -1, -1):
        mask = judged[at].mask
        if mask is not None:
            stage[~mask] = at
    return stage
