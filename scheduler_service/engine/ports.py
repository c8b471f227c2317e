"""What the engine needs of adapters: stages that have to wait for others.

A claim in the store keeps the daemons that share it from colliding. What a
request takes besides, such as allocations in the placement service or the
word of an extender, takes time that the engine's thread does not have. A stage
that waits takes jobs away to threads of its own and gives each of them back to
the request queue: with the state that it brought the job to, or with the
reason why it could not. The engine knows no more of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from scheduler_service.columns import HostTable
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import HostJob, JobLender
from scheduler_service.model import Request
from scheduler_service.pipeline import HostPipeline


class Completer(Protocol):
    """Completes claims that the store has: CLAIMED -> COMPLETED.

    A job whose claims cannot be completed comes back with its ``failure``.
    Where that is NoValidHost, a host that has no room after all is among its
    ``excluded_hosts``, and the job is scheduled again.
    """

    def check(self, request: Request) -> None:
        """Check that claims for a request can be completed.

        :raises InvalidRequest: they cannot; it says what is not supported
        """
        ...

    def complete(self, jobs: Sequence[HostJob]) -> None:
        """Take away jobs whose claims were made together."""
        ...

    def stop(self) -> None:
        """Complete nothing more."""
        ...


# Makes a completer, of what it takes jobs from and gives them back to.
MakeCompleter = Callable[[JobLender], Completer]


class Extenders(Protocol):
    """Other services that have a say in requests."""

    max_requeries: int
    """How often a request whose hosts are taken is sent to them again."""

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

    def ask(self, job: HostJob, table: HostTable) -> None:
        """Take a job away; it comes back QUEUED with ``extender_scores``.

        :param table: the newest; it is copied before this returns
        """
        ...

    def bind(self, job: HostJob, table: HostTable) -> None:
        """Take a job away to bind what it claimed: COMPLETED -> BOUND.

        Where that fails, the host is among its ``excluded_hosts``.

        :param table: the newest; it is copied before this returns
        """
        ...

    def retire(self) -> None:
        """Take no more jobs, and stop when the last one is back."""
        ...

    def stop(self) -> None:
        """End the threads and close the connections."""
        ...


# Makes what asks extenders: of the pipeline of hosts, the health, and what it
# takes jobs from and gives them back to.
MakeExtenders = Callable[[HostPipeline, Health, JobLender], Extenders]
