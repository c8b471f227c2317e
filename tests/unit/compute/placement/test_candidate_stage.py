"""When candidates are found again, and how often."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from scheduler_service.compute.placement.candidate_stage import CandidateStage
from scheduler_service.compute.placement.candidates import Candidates
from scheduler_service.engine.attempt import Attempt
from scheduler_service.engine.jobs import HostJob
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.model import documents

TABLE: Any = SimpleNamespace(ids=[1])


@pytest.fixture
def stage() -> Any:
    """A stage that asks nobody."""
    unused: Any = None
    made = CandidateStage(unused, unused, RequestQueue(1))
    yield made
    made.stop()


def new_job(attempts: int = 0, **given: Any) -> HostJob:
    """Return a job that has asked for candidates before."""
    request = documents.request({'flavor': {'memory_mb': 1}})
    return HostJob(
        request=request, attempts=attempts, attempt=Attempt(**given)
    )


@pytest.mark.parametrize(
    ('is_whole', 'attempts', 'rounds', 'hosts', 'again'),
    [
        # Others than the best hosts may have some.
        (False, 0, 1, [1], True),
        (False, 0, 2, [1], True),
        # All were asked about, and nothing was lost since.
        (True, 0, 1, [1], False),
        (True, 1, 1, [1], True),
        (True, 1, 2, [1], True),
        # A host was added since.
        (True, 0, 1, [], True),
        # As often as they may be asked for.
        (False, 0, 3, [1], False),
        (True, 1, 3, [1], False),
        (True, 0, 3, [], False),
    ],
)
def test_candidates_are_found_again(
    stage, is_whole, attempts, rounds, hosts, again
):
    job = new_job(
        attempts,
        candidates=Candidates(1, is_whole),
        candidate_rounds=rounds,
        candidate_hosts=hosts,
    )
    assert stage.forget(job, TABLE) is again
    assert (job.attempt.candidates is None) is again


def test_a_job_without_candidates_has_none_to_forget(stage):
    assert not stage.forget(new_job(), TABLE)


@pytest.mark.parametrize(
    ('rounds', 'forgotten'), [(1, True), (2, True), (3, False)]
)
def test_candidates_of_older_hosts_are_found_anew(stage, rounds, forgotten):
    found = Candidates(1, is_whole=True)
    job = new_job(candidates=found, candidate_rounds=rounds)
    assert stage.forget(job, None) is forgotten
    assert (job.attempt.candidates is None) is forgotten
