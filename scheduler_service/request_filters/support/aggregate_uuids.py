"""The uuids of aggregates, as placement queries name them."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler_service.model import Aggregate


def aggregate_uuids(aggregates: Iterable[Aggregate]) -> frozenset[str]:
    """Return the uuids of some aggregates."""
    return frozenset(one.uuid for one in aggregates)
