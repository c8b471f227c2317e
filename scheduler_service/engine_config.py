"""What a configuration makes of the engine, checked and ready for use.

Plain values and loaded plug-ins, made by ``factory``. The engine's thread
takes new ones between two batches, so that a request is decided by one
configuration as a whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from scheduler_service.pipeline import HostPipeline, PoolPipeline
from scheduler_service.stages import MakeStages
from scheduler_service.store.sessions import Timeouts


@dataclasses.dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of the group ``[scheduler]`` under the same names.

    Those that begin with ``history_`` are of the group ``[history]``.
    Times are in seconds, all other numbers are counts.
    """

    batch_size: int = 64
    snapshot_max_age: float = 0.2
    decisions_kept: int = 100_000
    log_decisions: bool = True
    decisions_max_age: float = 0.0
    service_down_time: float = 60.0
    claim_timeout: float = 0.0
    outcome_retention: float = 86_400.0
    history_days: float = 7.0
    history_bytes: int = 2**31


@dataclasses.dataclass(frozen=True, slots=True)
class Policy:
    """What a policy file says of requests beside the options.

    :ivar filters: in place of ``enabled_filters``; None: those stay
    :ivar weighers: in place of ``weight_classes``; None: those stay
    :ivar multipliers: field of the settings -> value in place of the option
    :ivar stages: makes the stages that call extenders; None: there are none
    """

    filters: Sequence[str] | None = None
    weighers: Sequence[str] | None = None
    multipliers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    stages: MakeStages | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the engine decides.

    :ivar hosts: filters and weighers of hosts, with the values they read
    :ivar pools: filters of pools
    :ivar stages: makes those that call extenders, and those of plug-ins; None:
        there are none
    :ivar timeouts: of connections to the database
    """

    hosts: HostPipeline
    pools: PoolPipeline
    options: EngineOptions
    stages: MakeStages | None
    timeouts: Timeouts
