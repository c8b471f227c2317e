"""Fixtures of what changes claims, on a store that a test gives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scheduler_service.engine.claim_changer import ClaimChanger
from scheduler_service.engine.health import Health
from scheduler_service.engine.outcomes import Outcomes
from scheduler_service.engine.snapshot_cache import SnapshotCache


@pytest.fixture
def snapshots(store) -> Iterator[SnapshotCache]:
    cache = SnapshotCache(store, max_age=60.0)
    yield cache
    cache.drop()


@pytest.fixture
def changer(snapshots) -> ClaimChanger:
    return ClaimChanger(snapshots, Outcomes(3600.0, Health()))
