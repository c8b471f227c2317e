"""Host filters, collected from the modules here."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

from scheduler_service.filters.base import (
    AdaptedHostFilter,
    HostFilter,
    HostState,
    OneHostFilter,
)


def _defined() -> Iterator[type[HostFilter]]:
    """Yield the filters that the modules of this package define."""
    for info in pkgutil.iter_modules(__path__, f'{__name__}.'):
        module = importlib.import_module(info.name)
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if (
                issubclass(kind, HostFilter)
                and kind.__module__ == info.name
                and not inspect.isabstract(kind)
            ):
                yield kind


# By name, whichever module defines a class: filters and weighers run in this
# order where all are configured.
BUILT_IN: tuple[type[HostFilter], ...] = tuple(
    sorted(_defined(), key=lambda kind: kind.__name__.lower())
)


def all_filters() -> list[type[HostFilter]]:
    """Return every host filter that comes with the service."""
    return list(BUILT_IN)


__all__ = [
    'BUILT_IN',
    'AdaptedHostFilter',
    'HostFilter',
    'HostState',
    'OneHostFilter',
    'all_filters',
]
