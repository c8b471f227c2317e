"""What a configuration makes of the engine, checked and ready for use.

Plain values and loaded plug-ins, made by ``engine.factory``. The engine's
thread takes a new plan between two batches, so that a request is decided by
one of them as a whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from scheduler_service.engine.extenders import ExtenderOptions
from scheduler_service.engine.options import EngineOptions
from scheduler_service.extender.config import Extender
from scheduler_service.pipeline import HostPipeline, PoolPipeline
from scheduler_service.store.timeouts import Timeouts


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """How the engine decides.

    :ivar hosts: filters and weighers of hosts, with the values they read
    :ivar pools: filters of pools
    :ivar extenders: that are asked; none: an empty sequence
    :ivar asking: how they are asked
    :ivar timeouts: of connections to the database
    """

    hosts: HostPipeline
    pools: PoolPipeline
    options: EngineOptions
    extenders: Sequence[Extender]
    asking: ExtenderOptions
    timeouts: Timeouts
