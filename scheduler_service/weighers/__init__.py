"""Weighers of hosts, collected from the modules here."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

from scheduler_service.weighers import base
from scheduler_service.weighers.base import Weigher

# By name, whichever module defines a class: filters and weighers run in this
# order where all are configured.
BUILT_IN: tuple[type[Weigher], ...] = tuple(
    sorted(
        (
            kind
            for info in pkgutil.iter_modules(__path__, f'{__name__}.')
            for kind in vars(importlib.import_module(info.name)).values()
            if inspect.isclass(kind)
            and issubclass(kind, Weigher)
            and kind.__module__ == info.name != base.__name__
            and not inspect.isabstract(kind)
        ),
        key=lambda kind: kind.__name__.lower(),
    )
)


def all_weighers() -> list[type[Weigher]]:
    """Return every weigher that comes with the service."""
    return list(BUILT_IN)


__all__ = ['BUILT_IN', 'Weigher', 'all_weighers']
