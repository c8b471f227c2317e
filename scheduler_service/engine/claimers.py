"""Where claims are confirmed before their callers know: one interface.

A claim in the store keeps the daemons that share it from colliding. What it
takes besides, a claimer does: nothing, or allocations in the placement
service. The engine does not know which.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from scheduler_service import errors
from scheduler_service.engine.jobs import HostJob
from scheduler_service.engine.lanes import GatherS
from scheduler_service.model import Placement, Request

# Replies to a job with an error, and records why.
Refuse = Callable[[HostJob, errors.SchedulerError], None]


class Claimer(Protocol):
    """Completes claims that were made in the store."""

    @property
    def has_pending(self) -> bool:
        """Whether claims are being completed."""
        ...

    @property
    def gather_s(self) -> GatherS | None:
        """For how long requests may gather, since none could be completed.

        None: each can be at any time.
        """
        ...

    def notify(self, on_call_end: Callable[[], None]) -> None:
        """Have it said when ``gather_s`` may say something else."""
        ...

    def together(self) -> contextlib.AbstractContextManager[None]:
        """Begin to complete no claim before all of a batch are handed over.

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


class EmbeddedClaimer:
    """Claims are complete once they are in the store."""

    has_pending = False
    gather_s = None
    together = staticmethod(contextlib.nullcontext)

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
