"""The claims of a job, as the threads that complete them take them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from scheduler_service import errors
from scheduler_service.compute.placement.claims import Wanted
from scheduler_service.engine.jobs import HostJob
from scheduler_service.model import Placement


class ClaimTask(msgspec.Struct, eq=False):
    """The claims of a job.

    :ivar placements: in the order of *wanted*
    :ivar hosts: uuid of a provider -> service host
    :ivar repeated: whether they may be complete already
    :ivar is_tree: whether the service says which providers give them
    :ivar since: monotonic time at which it began to wait
    """

    job: HostJob
    wanted: list[Wanted]
    placements: Sequence[Placement]
    hosts: dict[str, str]
    repeated: bool
    is_tree: bool
    on_done: Callable[[], None]
    on_failure: Callable[[errors.SchedulerError], None]
    since: float = msgspec.field(default_factory=time.monotonic)

    @property
    def fresh(self) -> bool:
        """Whether its instances have no allocations, as a rule."""
        return not (self.repeated or self.job.move)
