"""When extenders are asked again, and how often."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from scheduler_service.engine.attempt import Attempt
from scheduler_service.engine.jobs import HostJob
from scheduler_service.extenders.dispatcher import ExtenderDispatcher
from scheduler_service.model import documents

TABLE: Any = SimpleNamespace()


def forgets(table: Any, scores: Any, rounds: int) -> bool:
    """Return whether a job is to ask them again."""
    job = HostJob(
        request=documents.request({'flavor': {'memory_mb': 1}}),
        attempt=Attempt(extender_scores=scores, extender_rounds=rounds),
    )
    unused: Any = None
    forgotten = ExtenderDispatcher.forget(unused, job, table)
    assert job.attempt.extender_rounds == rounds
    expected = None if forgotten else scores
    assert job.attempt.extender_scores == expected
    return forgotten


@pytest.mark.parametrize(
    ('scores', 'rounds', 'asked'),
    [
        ([{1: 0.0}], 1, True),
        ([{1: 0.0}], 3, True),
        ([{1: 0.0}], 4, False),
        # They passed no host for one of the instances.
        ([{1: 0.0}, {}], 1, False),
        # They were not asked yet.
        (None, 0, False),
    ],
)
def test_extenders_are_asked_again_where_their_hosts_are_taken(
    scores, rounds, asked
):
    assert forgets(TABLE, scores, rounds) is asked


@pytest.mark.parametrize(
    ('rounds', 'forgotten'), [(1, True), (3, True), (4, False)]
)
def test_extenders_are_asked_anew_about_hosts_that_changed(rounds, forgotten):
    assert forgets(None, [{1: 0.0}, {}], rounds) is forgotten
