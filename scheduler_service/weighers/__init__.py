"""Weighers: one module each, listed in one table."""

from __future__ import annotations

from scheduler_service.weighers.base import Weigher
from scheduler_service.weighers.cpu import CPUWeigher
from scheduler_service.weighers.disk import DiskWeigher
from scheduler_service.weighers.ram import RAMWeigher

BUILT_IN: tuple[type[Weigher], ...] = (CPUWeigher, DiskWeigher, RAMWeigher)


def all_weighers() -> list[type[Weigher]]:
    """Return every weigher that comes with the service."""
    return list(BUILT_IN)


__all__ = ['BUILT_IN', 'Weigher', 'all_weighers']
