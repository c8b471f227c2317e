"""The uuids of aggregates, which a scope names them by."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler_service.model import Aggregate


def aggregate_uuids(aggregates: Iterable[Aggregate]) -> frozenset[str]:
    """Return the uuids of some aggregates."""
    return frozenset(aggregate.uuid for aggregate in aggregates)
