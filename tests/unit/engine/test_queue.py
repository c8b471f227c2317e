"""The queue of jobs: its order, its bound and its end."""

from __future__ import annotations

import threading
import time

import pytest

from scheduler_service import errors
from scheduler_service.engine.jobs import HostJob, Job
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.model import documents


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


def test_take_returns_nothing_when_no_job_comes_in_time():
    started = time.monotonic()
    assert RequestQueue(1).take(1, timeout=0.05) == []
    assert time.monotonic() - started >= 0.05


def test_take_returns_at_once_when_a_job_comes_while_it_waits():
    queue, job = RequestQueue(1), host_job()
    taken: list[list[Job]] = []
    thread = threading.Thread(
        target=lambda: taken.append(queue.take(1, timeout=30))
    )
    thread.start()
    queue.put(job)
    thread.join(10)
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


def test_requeue_is_accepted_when_the_queue_is_full():
    taken, waiting = host_job(), host_job()
    queue = filled(waiting, size=1)
    queue.requeue([taken])
    assert queue.take(9, timeout=0) == [taken, waiting]


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


def test_take_batchable_returns_as_many_as_asked_for():
    jobs = [host_job() for _ in range(3)]
    assert filled(*jobs).take_batchable(2) == jobs[:2]


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
        target=lambda: taken.append(queue.take(1, timeout=30))
    )
    thread.start()
    queue.close()
    thread.join(10)
    assert taken == [[]]
    started = time.monotonic()
    assert queue.take(1, timeout=30) == []
    assert time.monotonic() - started < 10
