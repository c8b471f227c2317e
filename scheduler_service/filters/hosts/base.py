"""The base classes of host filters, under the path that plug-ins import."""

from __future__ import annotations

from scheduler_service.filters.host_filter import (
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
