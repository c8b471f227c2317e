"""What the engine needs of adapters: who completes claims, who is asked.

A claim in the store keeps the daemons that share it from colliding. What it
takes besides, a claimer does: nothing, or allocations in the placement
service. The engine does not know which, nor what extenders are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import HostJob
from scheduler_service.model import Placement, Request
from scheduler_service.pipeline import HostPipeline

# Returns, for so many requests that wait, for how long more of them may gather
# before they are taken, in seconds.
BatchingDelay = Callable[[int], float]
# Replies to a job with an error, and records why.
Refuse = Callable[[HostJob, errors.SchedulerError], None]


class Claimer(Protocol):
    """Completes claims that were made in the store."""

    @property
    def has_pending(self) -> bool:
        """Whether claims are being completed."""
        ...

    @property
    def batching_delay_s(self) -> BatchingDelay | None:
        """For how long requests may gather, since none could be completed.

        None: each can be at any time.
        """
        ...

    def notify(self, on_call_end: Callable[[], None]) -> None:
        """Register a callback for when ``batching_delay_s`` changes."""
        ...

    def hold(self) -> contextlib.AbstractContextManager[None]:
        """Hold completions until the whole batch is queued.

        For the engine's thread.
        """
        ...

    def check(self, request: Request) -> None:
        """Check that claims for a request can be completed.

        :raises InvalidRequest: they cannot; it says what is not supported
        """
        ...

    def complete(
        self,
        job: HostJob,
        placements: Sequence[Placement],
        repeated: bool,
        on_done: Callable[[], None],
        on_failure: Callable[[errors.SchedulerError], None],
    ) -> None:
        """Complete the claims of a job; call one of the two functions.

        Before *on_failure*, a host that turned out to have no room is added
        to ``job.excluded_hosts``.

        :param repeated: they may be complete from an earlier delivery
        """
        ...

    def stop(self) -> None:
        """Complete nothing more."""
        ...


class Extenders(Protocol):
    """Other services that have a say in requests, asked on own threads."""

    max_requeries: int
    """How often a request whose hosts are taken is sent to them again."""

    @property
    def has_pending(self) -> bool:
        """Whether jobs are out that will come back."""
        ...

    @property
    def pending(self) -> int:
        """How many jobs are out that will come back."""
        ...

    @property
    def urls(self) -> list[str]:
        """Their URLs, without credentials."""
        ...

    def applies_to(self, request: Request) -> bool:
        """Whether any of them has a say in a request."""
        ...

    def binds(self, request: Request) -> bool:
        """Whether one of them binds what is claimed for a request."""
        ...

    def submit(self, job: HostJob, table: HostTable) -> None:
        """Have them asked about a job, which comes back to the queue.

        :param table: the newest; it is copied before this returns
        """
        ...

    def bind(
        self,
        job: HostJob,
        table: HostTable,
        placements: Sequence[Placement],
        on_bound: Callable[[], None],
        on_failure: Callable[[errors.ExtenderFailed], None],
    ) -> None:
        """Have placements bound; call one of the two functions.

        :param table: the newest; it is copied before this returns
        """
        ...

    def requeue(self, job: HostJob) -> None:
        """Put a job back into the request queue."""
        ...

    def retire(self) -> None:
        """Take no more jobs, and stop when the last one is back."""
        ...

    def stop(self) -> None:
        """End the threads and close the connections."""
        ...


# Makes what asks extenders: of the pipeline of hosts, the health, what puts
# a job back into the queue, and what refuses one.
MakeExtenders = Callable[
    [HostPipeline, Health, Callable[[HostJob], None], Refuse], Extenders
]


class EmbeddedClaimer:
    """Claims are complete once they are in the store."""

    has_pending = False
    batching_delay_s = None
    hold = staticmethod(contextlib.nullcontext)

    def notify(self, on_call_end: Callable[[], None]) -> None:
        """Do nothing: nothing is waited for."""

    def check(self, request: Request) -> None:
        """Check that a request has no groups of resources.

        :raises InvalidRequest: it has some
        """
        if request.resource_groups:
            suffix = request.resource_groups[0].suffix
            raise errors.InvalidRequest(
                f'resource_groups: group {suffix} can only be claimed in the '
                'placement service ([compute] use_placement)',
                at='resource_groups',
            )

    def complete(
        self,
        job: HostJob,
        placements: Sequence[Placement],
        repeated: bool,
        on_done: Callable[[], None],
        on_failure: Callable[[errors.SchedulerError], None],
    ) -> None:
        """Call *on_done*."""
        on_done()

    def stop(self) -> None:
        """Do nothing."""
