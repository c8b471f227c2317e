"""What a job was given so far, by stages before and after its claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Protocol

import msgspec

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.columns.dictionary import Ints
from scheduler_service.model import Placement, Request
from scheduler_service.pipeline import (
    Assignment,
    Bonuses,
    HostPipeline,
    ScheduleResult,
)


class Candidates(Protocol):
    """What may be allocated for the instances of a job, by host.

    :ivar is_whole: whether all hosts were asked about
    :ivar bounds: for each instance, the hosts that it may be on
    """

    is_whole: bool
    bounds: Bonuses

    def assign(self, assignments: Sequence[Assignment]) -> bool:
        """Put allocations into assignments; return whether all have some.

        If not, fewer hosts are among the bounds.
        """


class Attempt(msgspec.Struct, eq=False, kw_only=True):
    """What a job was given so far; it is thrown away as a whole.

    :ivar failure: why a stage could not do its part
    :ivar request: what of the request is to be placed; None: that is not
        known yet
    :ivar pipeline: that candidates, scores and places belong to
    :ivar candidates: for allocations, None while they are to be asked for,
        or where none are needed
    :ivar candidate_rounds: how often they were asked for
    :ivar candidate_hosts: int64[n], store ids of the hosts that they were
        last asked for among
    :ivar extender_scores: what extenders said, None while they are to be
        asked
    :ivar extender_rounds: how often they were asked
    :ivar placed: instance -> its place, of those that were placed in an
        earlier turn
    :ivar selection: what was selected, and why; None: nothing yet, or its
        claims are those of an earlier delivery
    :ivar table: that it was selected on
    :ivar present: instances that the table has, and that hold no claim of
        this kind
    :ivar held: placements of instances that had a claim before
    :ivar placements: all of the request, in the order of its instances
    :ivar passed: names of stages after the claim that ran for it
    :ivar records: stage -> instance -> JSON of what the stage is about to do
        for it, which is recorded with the claim
    :ivar is_repeated: whether the claims may be those of an earlier delivery
    :ivar waited: whether a stage after the claim took the job away
    """

    failure: errors.SchedulerError | None = None
    request: Request | None = None
    pipeline: HostPipeline | None = None
    candidates: Candidates | None = None
    candidate_rounds: int = 0
    candidate_hosts: Sequence[int] | Ints = ()
    extender_scores: Bonuses | None = None
    extender_rounds: int = 0
    placed: dict[str, Assignment] = msgspec.field(default_factory=dict)
    selection: ScheduleResult | None = None
    table: HostTable | None = None
    present: Set[str] = frozenset()
    held: Mapping[str, Placement] = {}
    placements: Sequence[Placement] = ()
    passed: tuple[str, ...] = ()
    records: dict[str, Mapping[str, str]] = msgspec.field(default_factory=dict)
    is_repeated: bool = False
    waited: bool = False

    def next(self, candidates: bool, scores: bool) -> Attempt:
        """Return the attempt that follows: see ``HostJob.begin_anew``."""
        return Attempt(
            pipeline=self.pipeline,
            candidates=self.candidates if candidates else None,
            candidate_rounds=self.candidate_rounds,
            candidate_hosts=self.candidate_hosts,
            extender_scores=self.extender_scores if scores else None,
            extender_rounds=self.extender_rounds,
        )

    def bounds(self) -> Bonuses | None:
        """Return the hosts that count, with additions to their weights."""
        scores, candidates = self.extender_scores, self.candidates
        if candidates is None or scores is None:
            return scores if candidates is None else candidates.bounds
        return [
            {host: more for host, more in score.items() if host in bound}
            for score, bound in zip(scores, candidates.bounds, strict=False)
        ]
