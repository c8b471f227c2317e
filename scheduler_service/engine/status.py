"""How the engine is, as plain values. Stateless; any thread may ask."""

from __future__ import annotations

import time
from typing import Any

from scheduler_service.engine.health import Health
from scheduler_service.engine.loop import EngineLoop
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.engine.snapshot_cache import SnapshotCache


def report(
    snapshots: SnapshotCache,
    queue: RequestQueue,
    loop: EngineLoop,
    health: Health,
) -> dict[str, Any]:
    """Return the size and age of the snapshot, what waits, and counters."""
    snapshot = snapshots.snapshot
    age = time.monotonic() - snapshots.refreshed_at
    up = int(snapshot.hosts.number('up').sum()) if snapshot else 0
    return {
        'hosts': len(snapshot.hosts) if snapshot else 0,
        'hosts_up': up,
        'pools': len(snapshot.pools) if snapshot else 0,
        'revision': snapshot.revision if snapshot else 0,
        'snapshot_age': round(age, 3) if snapshot else None,
        'waiting': len(queue),
        'database': 'up' if health.database_reachable else 'away',
        'batches': loop.batches,
        'requests': loop.requests,
        'degraded': health.degraded,
        'counters': health.counters(),
    }
