"""The engine's options as plain values, which any thread may read."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of the group ``[scheduler]`` under the same names.

    Times are in seconds, all other numbers are counts.
    """

    request_queue_size: int = 1000
    batch_size: int = 64
    claim_retries: int = 8
    snapshot_max_age: float = 0.2
    decisions_kept: int = 100_000
    log_decisions: bool = True
    decisions_max_age: float = 0.0
    service_down_time: float = 60.0
    claim_timeout: float = 0.0
    outcome_retention: float = 86_400.0
