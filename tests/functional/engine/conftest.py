"""Fixtures of what changes claims, on a store that a test gives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scheduler_service.engine.health import Health
from scheduler_service.settings import EngineOptions
from scheduler_service.store.ports.claimer import StoreClaimer
from scheduler_service.store.ports.host_source import StoreHostSource
from scheduler_service.store.ports.recall import Outcomes


@pytest.fixture
def snapshots(store) -> Iterator[StoreHostSource]:
    cache = StoreHostSource(
        store, EngineOptions(snapshot_max_age=60.0), lambda: None
    )
    yield cache
    cache.drop()


@pytest.fixture
def claimer(store, snapshots) -> StoreClaimer:
    return StoreClaimer(
        snapshots,
        Outcomes(store, EngineOptions(outcome_retention=3600.0), Health()),
    )
