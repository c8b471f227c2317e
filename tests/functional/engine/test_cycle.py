"""Stages that enter the cycle: their order, and what undoes them."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service.engine.jobs import HostJob, State
from scheduler_service.engine.ports import Stage, Undone
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.factory import build
from scheduler_service.model import documents
from scheduler_service.stages import WaitingStage
from tests.support.documents import SMALL
from tests.support.services import new_conf
from tests.support.stores import claim_state, import_two_hosts
from tests.support.waiting import LIMIT_S, SLOWNESS, wait_until

Calls = list[tuple[str, str]]


class Recorded(WaitingStage):
    """Records what is called, and fails or waits as a test has it.

    :param fails: with which each job comes back that it has; None: it leaves
        jobs as they are
    """

    def __init__(
        self,
        name: str,
        calls: Calls,
        queue: RequestQueue,
        fails: errors.SchedulerError | None = None,
        wait_s: float = 0.0,
        after: str = '',
    ) -> None:
        super().__init__(name, 1, queue)
        self.name = name  # type: ignore[misc]
        self.after = after
        self.is_recorded = name in ('complete', 'bind')  # type: ignore[misc]
        self._calls = calls
        self._fails, self._wait_s = fails, wait_s

    def run(self, jobs: Any, table: Any) -> None:
        """Record the stage, and give jobs back that fail."""
        self._calls.append(('run', self.name))
        for job in jobs if self._fails is not None else ():
            self._lend(job, self._fail)

    def _fail(self) -> None:
        time.sleep(self._wait_s)
        assert self._fails is not None
        raise self._fails

    def prepare(self, job: HostJob) -> None:
        """Have the stage undone, if it is one after the claim."""
        if self.is_recorded:
            (instance,) = job.request.instance_uuids
            job.attempt.records[self.name] = {instance: '{}'}

    def undo_all(self, records: Any, unsure: Any) -> Any:
        """Record the stage, which had nothing done yet."""
        self._calls.append(('undo', self.name))
        return {record.instance_uuid: Undone.DONE for record in records}


@pytest.fixture
def store(make_store: Any) -> Any:
    """A store whose claims are made at once."""
    return make_store('sqlite')


@pytest.fixture
def start(store):
    """Give a function that starts a scheduler with stages.

    It takes the name of each stage with what is special to it, and returns
    the scheduler and what is called.
    """
    import_two_hosts(store)
    url = store.engine.url.render_as_string(hide_password=False)
    made = build(new_conf(database__connection=url), store)
    calls: Calls = []

    def started(**stages: dict[str, Any]) -> tuple[Any, Calls]:
        for name, how in stages.items():
            made.enter(
                lambda pipeline, health, queue, _, name=name, how=how: [
                    Recorded(name, calls, queue, **how)
                ]
            )
        assert made.start()
        return made, calls

    yield started
    made.stop()


def select(scheduler: Any, **how: Any) -> tuple[str, Any]:
    """Return an instance, and the future of its host."""
    vm = str(uuid.uuid4())
    request = documents.request({'flavor': SMALL, 'instance_uuids': [vm]})
    return vm, scheduler.select_destinations(request, **how)


ADAPTERS = {'candidates': {}, 'extenders': {}, 'complete': {}, 'bind': {}}


def test_stages_run_in_the_order_of_the_cycle_whoever_enters_first(start):
    scheduler, calls = start(**dict(reversed(ADAPTERS.items())))
    _, answer = select(scheduler)
    assert len(answer.result(LIMIT_S).placements) == 1
    assert calls == [('run', name) for name in ADAPTERS]


def test_stages_of_plug_ins_follow_the_stage_that_they_name(start):
    plugged = {
        name: {'after': after}
        for name, after in (
            ('one', 'claim'), ('two', 'claim'), ('three', 'one'),
            ('four', 'complete'), ('five', 'bind'),
        )
    }  # fmt: skip
    scheduler, calls = start(**plugged, **ADAPTERS)
    select(scheduler)[1].result(LIMIT_S)
    assert [name for _, name in calls] == [
        'candidates', 'extenders', 'one', 'three', 'two', 'complete', 'four',
        'bind', 'five',
    ]  # fmt: skip


@pytest.mark.parametrize(
    ('failing', 'order'),
    [('bind', ['bind', 'complete']), ('complete', ['complete'])],
)
def test_stages_that_ran_are_undone_last_stage_first_once_the_claim_is_gone(
    start, store, failing, order
):
    failure = errors.ExtenderFailed('no')
    scheduler, calls = start(**{**ADAPTERS, failing: {'fails': failure}})
    vm, answer = select(scheduler)
    assert answer.exception(LIMIT_S) is failure
    assert claim_state(store, vm) is None

    def undone() -> list[str]:
        return [name for verb, name in calls if verb == 'undo']

    # Not once for all: a call may be under way for minutes.
    wait_until(lambda: 'complete' in undone())
    assert [*dict.fromkeys(undone())] == order


def test_nothing_is_undone_where_nothing_was_claimed(start):
    failure = errors.ExtenderFailed('no')
    scheduler, calls = start(extenders={'fails': failure})
    assert select(scheduler)[1].exception(LIMIT_S) is failure
    assert calls == [('run', 'extenders')]


def test_a_caller_that_went_meanwhile_gets_no_second_attempt(start, store):
    lost = errors.NoValidHost('It is full')
    # The stage is reached before the caller goes.
    patience_s = 2 * SLOWNESS
    scheduler, calls = start(complete={'fails': lost, 'wait_s': patience_s})
    vm, answer = select(scheduler, deadline=time.monotonic() + patience_s)
    with pytest.raises(errors.TooLate):
        answer.result(LIMIT_S)
    assert calls.count(('run', 'complete')) == 1
    assert claim_state(store, vm) is None


def test_a_job_says_how_far_it_has_come(start):
    """By the stages that it has passed, of those after the claim."""
    seen: list[tuple[State, tuple[str, ...]]] = []

    class Seen(Stage):
        name = 'bind'

        def run(self, jobs: list[HostJob], table: Any) -> None:  # type: ignore[override]
            seen.extend((job.state, job.attempt.passed) for job in jobs)

    scheduler, _ = start(complete={})
    scheduler.enter(lambda *_: [Seen()])
    select(scheduler)[1].result(LIMIT_S)
    assert seen == [(State.CLAIMED, ('complete', 'bind'))]
