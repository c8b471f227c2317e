"""Callers who ask for little, beside one who asks for much."""

from __future__ import annotations

import threading
import uuid

import pytest

from scheduler_service import errors
from scheduler_service.engine import explanations, selecting
from scheduler_service.engine.messages import DeliveredMessage
from scheduler_service.model import documents
from tests.support.waiting import LIMIT_S

TINY = {'vcpus': 0, 'memory_mb': 1}


def request(count: int = 1, **more):
    return documents.request(
        {'num_instances': count, 'flavor': TINY, **more}
    ).with_ids()


def sent_by(lane: str) -> DeliveredMessage:
    return DeliveredMessage(lane=lane)


@pytest.fixture
def scheduler(make_service):
    return make_service().daemon.scheduler


def test_another_caller_is_answered_before_a_long_request(
    scheduler, monkeypatch
):
    """And the long one is placed as a whole."""
    monkeypatch.setattr(selecting, 'TURN_S', 0.0)
    large = scheduler.select_destinations(
        request(1000), message=sent_by('large')
    )
    finished = []
    for _ in range(3):
        one = scheduler.select_destinations(
            request(), message=sent_by('other')
        )
        assert len(one.result(LIMIT_S).placements) == 1
        finished.append(large.done())
    assert finished == [False] * 3
    placements = large.result(LIMIT_S).placements
    assert len({placement.instance_uuid for placement in placements}) == 1000
    with scheduler._store.reading() as conn:
        held = conn.exec_driver_sql('SELECT count(*) FROM allocations')
        assert held.scalar_one() == 1003


def test_nothing_is_claimed_when_a_long_request_fails_in_a_later_turn(
    scheduler, monkeypatch
):
    monkeypatch.setattr(selecting, 'TURN_S', 0.0)
    with scheduler._store.reading() as conn:
        (before,) = conn.exec_driver_sql('SELECT count(*) FROM allocations')
    large = scheduler.select_destinations(
        request(500, flavor={'memory_mb': 500}), message=sent_by('large')
    )
    over = threading.Event()

    def ask():
        while not over.is_set():
            scheduler.select_destinations(
                request(), claim=False, message=sent_by('other')
            ).result(LIMIT_S)

    other = threading.Thread(target=ask)
    other.start()
    try:
        with pytest.raises(errors.NoValidHost):
            large.result(LIMIT_S)
    finally:
        over.set()
        other.join()
    with scheduler._store.reading() as conn:
        (after,) = conn.exec_driver_sql('SELECT count(*) FROM allocations')
    assert before == after


@pytest.mark.parametrize('lane', ['large', 'other'])
def test_a_release_does_not_overtake_the_selection_of_its_instance(
    scheduler, lane
):
    instances = [str(uuid.uuid4()) for _ in range(300)]
    large = scheduler.select_destinations(
        request(instance_uuids=instances), message=sent_by('large')
    )
    released = scheduler.release(instances[:5], message=sent_by(lane))
    assert sorted(released.result(LIMIT_S)) == sorted(instances[:5])
    assert len(large.result(0).placements) == 300


def test_callers_are_answered_while_requests_are_explained(scheduler):
    explained = [scheduler.explain(request(1000)) for _ in range(8)]
    for _ in range(3):
        one = scheduler.select_destinations(
            request(), message=sent_by('other')
        )
        assert len(one.result(LIMIT_S).placements) == 1
        # The order is checked: a clock fails where the machine pauses.
        assert not all(one.done() for one in explained)
    for one in explained:
        assert len(one.result(LIMIT_S)['placements']) == 1000
    with scheduler._store.reading() as conn:
        held = conn.exec_driver_sql('SELECT count(*) FROM allocations')
        assert held.scalar_one() == 3


def test_explanations_are_finished_when_the_scheduler_stops(scheduler):
    explained = [scheduler.explain(request(200)) for _ in range(3)]
    assert scheduler.stop(LIMIT_S)
    assert all(one.done() for one in explained)
    assert scheduler._queue.is_drained()


def test_an_explanation_that_takes_long_gives_way(scheduler, monkeypatch):
    monkeypatch.setattr(explanations, '_MOST_S', 0.0)
    large = scheduler.explain(request(1000))
    others = [scheduler.explain(request()) for _ in range(3)]
    with pytest.raises(errors.PayloadTooLarge, match='1000 instances are not'):
        large.result(LIMIT_S)
    for one in others:
        assert len(one.result(LIMIT_S)['placements']) == 1
