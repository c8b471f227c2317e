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
from scheduler_service.settings import EngineOptions
from scheduler_service.stages import MakeStages
from scheduler_service.store.sessions import Timeouts


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
    :ivar stages: makes those that call extenders, and those of plug-ins
    :ivar timeouts: of connections to the database
    """

    hosts: HostPipeline
    pools: PoolPipeline
    options: EngineOptions
    stages: MakeStages
    timeouts: Timeouts
