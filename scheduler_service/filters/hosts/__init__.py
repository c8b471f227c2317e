"""Host filters, collected from the modules here."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

from scheduler_service.filters.base import (
    AdaptedHostFilter,
    HostFilter,
    HostState,
    OneHostFilter,
)

# By name, whichever module defines a class: filters and weighers run in this
# order where all are configured.
BUILT_IN: tuple[type[HostFilter], ...] = tuple(
    sorted(
        (
            kind
            for info in pkgutil.iter_modules(__path__, f'{__name__}.')
            for kind in vars(importlib.import_module(info.name)).values()
            if inspect.isclass(kind)
            and issubclass(kind, HostFilter)
            and kind.__module__ == info.name
            and not inspect.isabstract(kind)
        ),
        key=lambda kind: kind.__name__.lower(),
    )
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
