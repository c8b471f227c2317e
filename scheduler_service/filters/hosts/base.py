"""The old path of ``scheduler_service.filters.base``, for one release.

Plug-ins of others may still import the base classes from here. Nothing in
this package does, and the next release removes the module.
"""

from __future__ import annotations

from scheduler_service.filters.base import (
    AdaptedHostFilter,
    Comparison,
    ComparisonFilter,
    HostFilter,
    Miss,
    OneHostFilter,
    RowFilter,
    RowSet,
    figure,
)
from scheduler_service.filters.host_state import HostState

__all__ = [
    'AdaptedHostFilter',
    'Comparison',
    'ComparisonFilter',
    'HostFilter',
    'HostState',
    'Miss',
    'OneHostFilter',
    'RowFilter',
    'RowSet',
    'figure',
]
