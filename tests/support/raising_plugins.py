"""Plug-ins of each kind whose methods raise what a test plans."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from scheduler_service.filters.hosts import HostFilter
from scheduler_service.filters.pools import PoolFilter
from scheduler_service.stages import ReservingStage
from scheduler_service.weighers.base import ColumnWeigher, Weigher

# Method -> what it raises.
plan: dict[str, BaseException] = {}
PATH = __name__


class LibraryTimeout(BaseException):
    """What eventlet and gevent raise after a time: no Exception."""


class Unprintable(Exception):
    """An error whose text raises another one."""

    def __str__(self) -> str:
        raise LibraryTimeout


KINDS = (
    asyncio.CancelledError,
    SystemExit,
    KeyboardInterrupt,
    GeneratorExit,
    LibraryTimeout,
    Unprintable,
    ValueError,
)


def meet(method: str) -> None:
    """Raise what is planned for a method."""
    fault = plan.get(method)
    if fault is not None:
        raise fault


class RaisingFilter(HostFilter):
    """Passes every host, but none for a flavor that is called none."""

    def mask_key(self, table: Any, request: Any, settings: Any) -> Any:
        meet('mask_key')
        return super().mask_key(table, request, settings)

    def mask(self, table: Any, request: Any, settings: Any) -> Any:
        meet('mask')
        if request.flavor.name == 'none':
            return np.zeros(len(table), np.bool_)
        return None

    def reason(self, table: Any, row: int, request: Any, settings: Any) -> str:
        meet('reason')
        return self.why

    def miss(self, table: Any, request: Any, settings: Any) -> Any:
        meet('miss')
        return None

    def limits(self, table: Any, row: int, settings: Any) -> dict[str, float]:
        meet('limits')
        return {}

    def numa_limits(
        self, table: Any, row: int, request: Any, settings: Any
    ) -> dict[str, float]:
        meet('numa_limits')
        return {}

    def ratios(self, table: Any, settings: Any) -> Any:
        meet('ratios')
        return None

    def has_devices(
        self, table: Any, row: int, request: Any, settings: Any
    ) -> bool:
        meet('has_devices')
        return True


class RaisingWeigher(Weigher):
    """Has no opinion."""

    def weight_key(self, table: Any, request: Any, settings: Any) -> Any:
        meet('weight_key')
        return super().weight_key(table, request, settings)

    def weigh(self, table: Any, rows: Any, request: Any, settings: Any) -> Any:
        meet('weigh')
        return None

    def multiplier(self, settings: Any) -> float:
        meet('multiplier')
        return 1.0


class RaisingColumnWeigher(ColumnWeigher):
    """Finds all hosts equal."""

    def column(self, table: Any, settings: Any) -> Any:
        meet('column')
        return np.zeros(len(table))


class RaisingPoolFilter(PoolFilter):
    """Leaves no pool."""

    def __init__(self, storage: Any) -> None:
        meet('__init__')
        super().__init__(storage)

    def filter(self, context: Any, pools: Any, zone: Any) -> Any:
        meet('filter')
        return []

    def missed(self, pool: Any, zone: Any) -> list[str]:
        meet('missed')
        return ['a reason']


class RaisingStage(ReservingStage):
    """Reserves nothing that anybody could see."""

    tried: list[str] = []
    undone: list[str] = []

    def document(
        self, request: Any, placement: Any, settings: Any
    ) -> dict[str, Any] | None:
        meet('document')
        return None if request.flavor.name == 'bare' else {}

    def make(self, reservation: Any, settings: Any) -> None:
        meet('make')

    def undo(self, reservation: Any, settings: Any) -> None:
        self.tried.append(reservation.instance_uuid)
        meet('undo')
        self.undone.append(reservation.instance_uuid)


class OtherStage(RaisingStage):
    """Another stage, which never raises."""

    undone: list[str] = []

    def document(
        self, request: Any, placement: Any, settings: Any
    ) -> dict[str, Any]:
        return {}

    def make(self, reservation: Any, settings: Any) -> None:
        return

    def undo(self, reservation: Any, settings: Any) -> None:
        self.undone.append(reservation.instance_uuid)
