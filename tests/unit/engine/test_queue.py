"""The queue of jobs: its order, its bound and its end."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service.engine.jobs import (
    ClaimsJob,
    ExplainJob,
    HostJob,
    Job,
    State,
    ZoneJob,
)
from scheduler_service.engine.messages import DeliveredMessage, RequestReturned
from scheduler_service.engine.queue import Lane, RequestQueue
from scheduler_service.model import documents
from tests.support.waiting import LIMIT_S, SLOWNESS


def host_job(**how) -> HostJob:
    return HostJob(request=documents.request({}), **how)


def filled(*jobs: Job, size: int = 100) -> RequestQueue:
    queue = RequestQueue(size)
    for job in jobs:
        queue.put(job)
    return queue


def test_jobs_are_taken_in_the_order_in_which_they_came():
    jobs = [host_job() for _ in range(3)]
    queue = filled(*jobs)
    assert len(queue) == 3
    assert queue.take(2, timeout=0) == jobs[:2]
    assert queue.take(2, timeout=0) == jobs[2:]
    assert len(queue) == 0


def test_put_is_refused_when_the_queue_is_full():
    queue = filled(host_job(), size=1)
    with pytest.raises(errors.ServiceBusy, match='1 requests') as caught:
        queue.put(host_job())
    assert caught.value.facts['waiting'] == 1


def test_jobs_that_do_not_fit_fail_when_many_are_put():
    jobs = [host_job() for _ in range(3)]
    queue = filled(size=2)
    queue.put_all(jobs)
    assert queue.take(9, timeout=0) == jobs[:2]
    with pytest.raises(errors.ServiceBusy):
        jobs[2].future.result(0)


def test_take_returns_at_once_when_a_job_comes_while_it_waits():
    queue, job = RequestQueue(1), host_job()
    taken: list[list[Job]] = []
    thread = threading.Thread(
        target=lambda: taken.append(queue.take(1, timeout=LIMIT_S))
    )
    thread.start()
    queue.put(job)
    thread.join(LIMIT_S)
    assert taken == [[job]]


def test_an_isolated_job_comes_alone_when_others_wait():
    before, alone, after = host_job(), host_job(isolated=True), host_job()
    queue = filled(before, alone, after)
    assert queue.take(9, timeout=0) == [before]
    assert queue.take(9, timeout=0) == [alone]
    assert queue.take(9, timeout=0) == [after]


def test_requeued_jobs_come_first_when_others_wait():
    first, second, waiting = (host_job() for _ in range(3))
    queue = filled(waiting)
    queue.requeue([first, second])
    assert queue.take(9, timeout=0) == [first, second, waiting]


@pytest.mark.parametrize(
    'stop',
    [Job(), host_job(move=True), host_job(isolated=True)],
    ids=['no host job', 'move', 'isolated'],
)
def test_take_batchable_stops_when_a_job_may_not_share_a_batch(stop):
    jobs = [host_job(), host_job()]
    queue = filled(*jobs, stop, host_job())
    assert queue.take_batchable(9) == jobs
    assert queue.take_batchable(9) == []
    assert queue.take(1, timeout=0) == [stop]


def test_waiting_jobs_are_handed_out_when_the_queue_is_closed():
    job, late = host_job(), [host_job()]
    queue = filled(job)
    queue.close()
    assert queue.closed
    with pytest.raises(errors.ServiceBusy, match='stopping'):
        queue.put(host_job())
    queue.put_all(late)
    with pytest.raises(errors.ServiceBusy, match='stopping'):
        late[0].future.result(0)
    assert queue.take(9, timeout=0) == [job]


def test_take_returns_at_once_when_the_queue_is_closed():
    queue = RequestQueue(1)
    taken: list[list[Job]] = []
    thread = threading.Thread(
        target=lambda: taken.append(queue.take(1, timeout=LIMIT_S))
    )
    thread.start()
    queue.close()
    thread.join(LIMIT_S)
    assert taken == [[]]
    started = time.monotonic()
    assert queue.take(1, timeout=LIMIT_S) == []
    assert time.monotonic() - started < 60 * SLOWNESS


def of(lane: str, count: int = 1, **how) -> list[HostJob]:
    return [host_job(message=sent_by(lane), **how) for _ in range(count)]


def sent_by(lane: str) -> DeliveredMessage:
    return DeliveredMessage(lane=lane)


def instances(count: int, lane: str = '') -> HostJob:
    request = documents.request({'num_instances': count}).with_ids()
    return HostJob(request=request, message=sent_by(lane))


def test_a_caller_that_comes_anew_is_next_when_another_has_many_waiting():
    many, one = of('flood', 50), of('other')[0]
    queue = filled(*many)
    assert queue.take(10, timeout=0) == many[:10]
    queue.put(one)
    assert one in queue.take(2, timeout=0)


def test_callers_get_equal_shares_counted_in_instances():
    """One asks for 4 instances at a time, the other for one."""
    large = [instances(4, 'large') for _ in range(40)]
    small = of('small', 100)
    queue = filled(*large, *small, size=1000)
    taken = [queue.take(1, timeout=0)[0] for _ in range(50)]
    assert sum(one.message.lane == 'small' for one in taken) == pytest.approx(
        40, abs=2
    )
    # Each caller's own jobs stay in their order.
    for lane, jobs in (('large', large), ('small', small)):
        own = [one for one in taken if one.message.lane == lane]
        assert own == jobs[: len(own)]


def test_a_job_with_many_instances_comes_in_a_batch_of_its_own():
    first, large, last = host_job(), instances(1000), host_job()
    queue = filled(first, large, last)
    assert queue.take(64, timeout=0) == [first]
    assert queue.take(64, timeout=0) == [large]
    assert queue.take(64, timeout=0) == [last]


def test_a_job_with_many_instances_comes_alone_when_few_are_left_to_place():
    """All of them are claimed together, and others would wait for that."""
    first, large = of('other')[0], instances(1000, 'large')
    uuids = large.request.instance_uuids
    large.attempt.placed = dict.fromkeys(uuids[:-1])  # type: ignore[arg-type]
    queue = filled(first, large)
    assert queue.take_batchable(64) == [first]
    queue = filled(first, large)
    assert queue.take(64, timeout=0) == [first]
    assert queue.take(64, timeout=0) == [large]


def test_what_is_left_of_a_job_counts_when_it_is_put_back():
    """Its caller goes on where it was, not behind all that others want."""
    large = instances(1000, 'large')
    others = of('other', 400)
    queue = filled(large, size=1000)
    assert queue.take(64, timeout=0) == [large]
    uuids = large.request.instance_uuids
    large.attempt.placed = dict.fromkeys(uuids[:100])  # type: ignore[arg-type]
    queue.put_all(others)
    queue.requeue([large])
    before = 0
    while queue.take(1, timeout=0) != [large]:
        before += 1
    assert before == pytest.approx(100, abs=2)


@pytest.mark.parametrize('lane', ['a', 'b'])
def test_a_job_waits_for_those_before_it_that_name_its_instance(lane):
    """A release does not overtake the selection, whoever asks for it."""
    selection = instances(1, 'a')
    uuids = selection.request.instance_uuids
    release = ClaimsJob(
        change=lambda *_: [None], instances=uuids, message=sent_by(lane)
    )
    (behind,), (other,) = of(lane), of('c')
    queue = filled(*of('a', 3), selection, release, behind, other)
    taken = queue.take(99, timeout=0)
    assert selection in taken
    assert other in taken
    assert release not in taken
    assert behind not in taken
    # It is taken, and has no result yet; then it comes back to be gone on
    # with.
    assert queue.take(99, timeout=0) == []
    queue.requeue([selection])
    assert queue.take(99, timeout=0) == [selection]
    selection.finish(None)
    assert queue.take(99, timeout=0) == [release, behind]


def test_a_job_is_taken_soon_when_the_one_before_it_gets_its_result():
    zone = documents.zone({'name': 'a.'}).with_ids()
    caller: Any = None
    first, second = (ZoneJob(request=zone, caller=caller) for _ in range(2))
    queue = filled(first, second)
    assert queue.take(9, timeout=0) == [first]
    threading.Timer(0.1, first.finish, [None]).start()
    started = time.monotonic()
    assert queue.take(9, timeout=LIMIT_S) == [second]
    assert time.monotonic() - started < 60 * SLOWNESS


def test_one_explanation_is_taken_at_a_time_and_few_may_wait():
    jobs = [ExplainJob(request=documents.request({})) for _ in range(32)]
    queue = filled(*jobs)
    with pytest.raises(errors.ServiceBusy):
        queue.put(ExplainJob(request=documents.request({})))
    other = host_job()
    queue.put(other)
    assert set(map(id, queue.take(9, timeout=0))) == {id(jobs[0]), id(other)}
    assert queue.take(9, timeout=0) == []
    jobs[0].finish(None)
    assert queue.take(9, timeout=0) == [jobs[1]]


def test_a_full_queue_accepts_a_caller_that_has_less_than_its_share():
    queue = filled(*of('flood', 10), size=10)
    with pytest.raises(errors.ServiceBusy):
        queue.put(*of('flood'))
    for _ in range(5):
        queue.put(*of('other'))
    with pytest.raises(errors.ServiceBusy):
        queue.put(*of('other'))


def test_callers_that_were_served_once_are_not_remembered():
    queue = RequestQueue(100)
    for number in range(1000):
        queue.put(*of(f'caller-{number}'))
        queue.take(9, timeout=0)
        # The engine comes again, and nobody waits.
        assert queue.take(9, timeout=0) == []
    made = [one for one in gc.get_objects() if isinstance(one, Lane)]
    assert len(made) < 200


def test_a_caller_keeps_its_place_while_others_wait():
    queue = filled(*of('busy', 9), *of('other', 4))
    for _ in range(5):
        queue.take(1, timeout=0)
    queue.put(*of('new'))
    lanes = [job.message.lane for job in queue.take(3, timeout=0)]
    assert 'new' in lanes


def test_all_jobs_are_taken_at_once_from_all_lanes():
    """Those too that wait for others; and all may be put back."""
    first, second = instances(2, 'a'), instances(2, 'b')
    behind = ClaimsJob(
        change=lambda *_: [None],
        instances=first.request.instance_uuids,
        message=sent_by('c'),
    )
    queue = filled(first, second, behind)
    assert queue.take(1, timeout=0) == [first]
    assert queue.take(9, timeout=0) == [second]
    assert queue.take(9, timeout=0) == []
    queue.requeue([second])
    taken = queue.take_all()
    assert taken == [second, behind]
    assert len(queue) == 0
    assert not queue.others_wait('')
    assert queue.take(9, timeout=0) == []
    queue.requeue([first, *taken])
    assert queue.take(9, timeout=0) == [first, second]
    first.finish(None)
    assert queue.take(9, timeout=0) == [behind]


def test_a_job_that_was_returned_is_not_waited_for():
    first = instances(1, 'a')
    uuids = first.request.instance_uuids
    queue = filled(first)
    for job in queue.take_all():
        job.fail(RequestReturned())
    release = ClaimsJob(
        change=lambda *_: [None], instances=uuids, message=sent_by('b')
    )
    queue.put(release)
    assert queue.take(9, timeout=0) == [release]


def test_a_refusal_is_waited_for_until_it_is_recorded():
    """Its caller does not know it before, and may claim with a copy."""
    first = instances(1)
    first.state = State.DONE
    release = ClaimsJob(
        change=lambda *_: [None], instances=first.request.instance_uuids
    )
    queue = filled(first, release)
    assert queue.take(9, timeout=0) == [first]
    assert queue.take(9, timeout=0) == []
    first.future.set_exception(errors.NoValidHost())
    assert queue.take(9, timeout=0) == [release]


def test_callers_are_not_charged_for_what_was_taken_back():
    large = instances(100, 'a')
    queue = filled(large, *of('b', 3))
    assert queue.take_all()[0] is large
    queue.requeue([large])
    queue.put_all(of('b', 1))
    queue.put_all(of('a', 1))
    assert queue.take(64, timeout=0)[0] is large


def test_finished_jobs_are_not_kept():
    queue = RequestQueue(10)
    jobs = []
    for _ in range(200):
        job = instances(3)
        jobs.append(weakref.ref(job.future))
        queue.put(job)
        for taken in queue.take(9, timeout=0):
            taken.finish(None)
        del job, taken
    queue.take(1, timeout=0)
    assert not any(job() for job in jobs)


def test_what_a_stage_gives_back_comes_before_all_that_wait():
    queue = RequestQueue(9)
    lent, waiting = instances(1), instances(1)
    queue.put(lent)
    assert queue.take(9, timeout=0) == [lent]
    queue.lend([lent])
    queue.put(waiting)
    assert (queue.away, lent.away) == (1, True)
    lent.state = State.CLAIMED
    queue.give_back(lent)
    assert (queue.away, len(queue)) == (0, 2)
    # It is the stage's until the engine has it again.
    assert lent.away
    assert queue.take(9, timeout=0) == [lent, waiting]
    assert not lent.away


def test_what_is_selected_again_waits_for_its_turn():
    queue = RequestQueue(9)
    lent = instances(1)
    queue.put(lent)
    queue.take(9, timeout=0)
    queue.lend([lent])
    large = instances(99)
    queue.put(large)
    queue.give_back(lent)
    assert queue.take(9, timeout=0) == [lent]
    assert queue.take(9, timeout=0) == [large]


def test_what_failed_at_a_stage_or_is_done_there():
    queue = RequestQueue(9)
    failed, done = instances(1), instances(1)
    for job in (failed, done):
        queue.put(job)
    queue.take(9, timeout=0)
    queue.lend([failed, done])
    failed.attempt.failure = errors.NoValidHost('none')
    done.finish([])
    queue.give_back(done)
    queue.give_back(failed)
    assert queue.take(9, timeout=0) == [failed]
    assert queue.take(9, timeout=0) == []
