"""When candidates and extenders are asked again, and how often."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service.compute.placement.candidates import Candidates
from scheduler_service.engine.jobs import Attempt, HostJob
from scheduler_service.engine.ports import Parts
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.engine.selecting import Selector
from scheduler_service.model import documents

REFUSAL = errors.NoValidHost('none')


class Asked:
    """Counts what a selector asks others; stands for both of them."""

    max_requeries = 1

    def __init__(self) -> None:
        self.refusals: list[Any] = []
        self.asked: list[Any] = []

    def applies_to(self, request: Any) -> bool:
        return True

    def ask(self, *about: Any) -> None:
        self.asked.append(about)

    def check_refusal(self, *about: Any) -> bool:
        self.refusals.append(about)
        return True


@pytest.fixture
def selector() -> Any:
    """A selector without hosts, extenders or placement."""
    unused: Any = None
    parts = Parts(*[unused] * 4, RequestQueue(10), random.Random(1))
    return Selector(parts, unused)


def new_job(attempts: int = 0, **given: Any) -> HostJob:
    """Return a job that has asked others before."""
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
    selector, is_whole, attempts, rounds, hosts, again
):
    found = Candidates(1, is_whole)
    job = new_job(
        candidates=found,
        candidate_rounds=rounds,
        candidate_hosts=hosts,
        attempts=attempts,
    )
    table: Any = SimpleNamespace(ids=[1])
    assert selector.forget_candidates(job, table) is again
    assert (job.attempt.candidates is None) is again


def test_a_job_without_candidates_has_none_to_forget(selector):
    table: Any = SimpleNamespace(ids=[1])
    assert not selector.forget_candidates(new_job(), table)


@pytest.mark.parametrize(
    ('rounds', 'forgotten'), [(1, True), (2, True), (3, False)]
)
def test_candidates_of_older_hosts_are_found_anew(selector, rounds, forgotten):
    job = new_job(candidates=Candidates(1), candidate_rounds=rounds)
    selector.forget_answers(job)
    assert (job.attempt.candidates is None) is forgotten


@pytest.mark.parametrize(
    ('rounds', 'forgotten'), [(0, True), (1, True), (2, False)]
)
def test_extenders_are_asked_anew(selector, rounds, forgotten):
    selector.extenders = Asked()
    job = new_job(extender_scores=[{1: 0.0}], extender_rounds=rounds)
    selector.forget_answers(job)
    assert (job.attempt.extender_scores is None) is forgotten


def test_scores_stay_where_there_are_no_extenders(selector):
    job = new_job(extender_scores=[{1: 0.0}])
    selector.forget_answers(job)
    assert job.attempt.extender_scores == [{1: 0.0}]


@pytest.mark.parametrize(
    ('error', 'checked_at', 'checked'),
    [
        (REFUSAL, 0.0, True),
        (REFUSAL, 1.0, False),
        (errors.Forbidden('no'), 0.0, False),
    ],
)
def test_a_refusal_is_checked_once(selector, error, checked_at, checked):
    asked = selector.completer = Asked()
    job = new_job(checked_at=checked_at, candidates=Candidates(1))
    assert selector.check_refusal(job, error, None) is checked
    assert len(asked.refusals) == checked
    assert (job.attempt.candidates is None) is checked


def test_a_refusal_without_a_placement_service_stands(selector):
    assert not selector.check_refusal(new_job(), REFUSAL, None)


@pytest.mark.parametrize(
    ('scores', 'rounds', 'asked'),
    [
        ([{1: 0.0}], 1, True),
        ([{1: 0.0}], 2, False),
        # They passed no host for one of the instances.
        ([{1: 0.0}, {}], 1, False),
        # They were not asked yet.
        (None, 0, False),
    ],
)
def test_extenders_are_asked_again_where_their_hosts_are_taken(
    selector, scores, rounds, asked
):
    job = new_job(extender_scores=scores, extender_rounds=rounds)
    assert not selector.ask_extenders_again(job, None)
    selector.extenders = Asked()
    assert selector.ask_extenders_again(job, None) is asked
    assert len(selector.extenders.asked) == asked
    assert (job.attempt.extender_scores is None) is (asked or scores is None)
