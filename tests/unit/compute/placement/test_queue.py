"""Which claims go together in a call of the placement service, and when."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from scheduler_service.compute.placement import claims as placement_queue
from scheduler_service.compute.placement.claims import (
    MOST_AT_ONCE,
    PlacementQueue,
)
from tests.support.waiting import LIMIT_S, wait_until


class Task:
    """The claims of a job on some providers."""

    def __init__(self, *providers, age=0.0):
        self.allocations = list(providers)
        self.hosts = {provider: f'host-{provider}' for provider in providers}
        self.since = placement_queue.time.monotonic() - age


def tasks(count, **how):
    return [Task(f'p{number}', **how) for number in range(count)]


@pytest.fixture
def queue():
    return PlacementQueue()


def begin(queue):
    """Begin the next call, which waits for no other; None: it would wait."""
    if any(left_s <= 0 for _, left_s in [queue._fitting()]):
        return queue.take()
    return None


def test_a_call_takes_no_more_than_fit(queue):
    several = Task(*(f'q{number}' for number in range(MOST_AT_ONCE - 1)))
    some = tasks(2)
    queue.put([several, *some])
    assert begin(queue).tasks == [several, some[0]]


def test_one_that_is_larger_than_a_call_goes_alone(queue):
    small = Task('a', age=60)
    large = Task(*(f'r{number}' for number in range(MOST_AT_ONCE + 1)))
    queue.put([small, large, Task('b')])
    assert begin(queue).tasks == [small]
    assert begin(queue).tasks == [large]


def test_no_two_calls_are_at_the_same_provider(queue):
    first, other, same = Task('a'), Task('b', age=60), Task('a', age=60)
    queue.put([first])
    call = begin(queue)
    queue.put([same, other])
    assert begin(queue).tasks == [other]
    assert begin(queue) is None
    queue.done(call)
    assert begin(queue).tasks == [same]


def test_others_join_until_a_call_ends(queue):
    queue.put([Task('a')])
    call = begin(queue)
    second, third = Task('b'), Task('c')
    queue.put([second])
    assert begin(queue) is None
    queue.put([third])
    queue.done(call)
    assert begin(queue).tasks == [second, third]


def test_the_next_call_does_not_wait_for_what_follows_an_answer(queue):
    queue.put([Task('a')])
    call = begin(queue)
    same = Task('a')
    queue.put([same])
    queue.done(call)
    following = begin(queue)
    assert following.tasks == [same]
    queue.done(call)
    # It frees nothing that is in the call after it.
    queue.put([Task('a', age=60)])
    assert begin(queue) is None
    queue.done(following)
    assert begin(queue).tasks


def test_few_calls_of_some_consumers_are_under_way_at_once(queue):
    """Each keeps a worker of the service busy."""
    few = [Task(f'few{number}') for number in range(4)]
    some = [Task(f'some{number}') for number in range(5)]
    more = [Task(f'more{number}') for number in range(5)]
    queue.put([Task('a')])
    call = begin(queue)
    queue.put(few)
    assert begin(queue) is None
    fifth = Task('b')
    queue.put([fifth])
    assert begin(queue).tasks == [*few, fifth]
    queue.put(some)
    assert begin(queue).tasks == some
    # No more of them than three.
    queue.put(more)
    assert begin(queue) is None
    queue.done(call)
    assert begin(queue).tasks == more


def test_a_thread_that_waits_gets_what_is_put_or_set_free(queue):
    with ThreadPoolExecutor(2) as threads:
        queue.put([Task('a')])
        call, same, other = queue.take(), Task('a'), Task('b', age=60)
        queue.put([same])
        waiting = [threads.submit(queue.take) for _ in range(2)]
        wait_until(lambda: all(each.running() for each in waiting))
        queue.put([other])
        wait_until(lambda: any(each.done() for each in waiting))
        first, second = sorted(waiting, key=lambda each: not each.done())
        assert first.result(LIMIT_S).tasks == [other]
        assert not second.done()
        queue.done(call)
        assert second.result(LIMIT_S).tasks == [same]


def test_a_thread_waits_no_more_when_others_took_all(queue):
    assert queue.take() is None
    with ThreadPoolExecutor(2) as threads:
        queue.put([Task('a')])
        call, same = queue.take(), Task('a')
        queue.put([same])
        waiting = [threads.submit(queue.take) for _ in range(2)]
        wait_until(lambda: all(each.running() for each in waiting))
        queue.done(call)
        ended = [each.result(LIMIT_S) for each in waiting]
        assert [each.tasks for each in ended if each] == [[same]]


@pytest.mark.parametrize(
    ('count', 'age'),
    [(MOST_AT_ONCE, 0.0), (1, 2 * placement_queue._MAX_WAIT_S)],
    ids=['full', 'old'],
)
def test_a_full_call_and_one_that_waited_long_wait_for_no_other(
    queue, count, age
):
    queue.put([Task('a')])
    begin(queue)
    some = tasks(count, age=age)
    queue.put(some)
    assert begin(queue).tasks == some


def test_threads_end(queue):
    queue.put([Task('a')])
    queue.take()
    queue.put([Task('a')])
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(queue.take) for _ in range(3)]
        wait_until(lambda: all(each.running() for each in waiting))
        queue.stop()
        assert [each.result(LIMIT_S) for each in waiting] == [None] * 3


def test_every_task_is_done_once_with_many_threads(queue):
    some = [Task(f'p{number % 7}') for number in range(300)]
    done, at_work = [], set()

    def work():
        call = queue.take()
        if call is None:
            return
        mine = {host for task in call.tasks for host in task.hosts}
        clash = not at_work.isdisjoint(mine)
        at_work.update(mine)
        time.sleep(0)
        at_work.difference_update(mine)
        done.extend((task, clash) for task in call.tasks)
        queue.done(call)

    with ThreadPoolExecutor(4) as threads:
        for start in range(0, 300, 30):
            queue.put(some[start : start + 30])
            for _ in range(30):
                threads.submit(work)
    assert len(done) == 300
    assert {task for task, _ in done} == {*some}
    assert not any(clash for _, clash in done)
