"""What a trace is told of the stages of a request. Stateless.

Where a request is not traced, which is the rule, each function ends at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from scheduler_service import time_slice, tracing
from scheduler_service.engine.claiming import ScheduledJob
from scheduler_service.engine.jobs import HostJob

_NOTHING: AbstractContextManager[None] = nullcontext()


def of_selection(
    job: HostJob, turn: time_slice.TimeSlice
) -> AbstractContextManager[None]:
    """Tell what happens inside the block: wait, filter and weigh."""
    trace = job.message.trace
    return _NOTHING if trace is None else _selecting(job, turn, trace)


@contextmanager
def _selecting(
    job: HostJob, turn: time_slice.TimeSlice, trace: tracing.Trace
) -> Iterator[None]:
    turn.filtered = time_slice.Filtered()
    start = time.monotonic()
    trace.stage('wait', job.queued_at, start, attempts=job.attempts)
    try:
        yield
    finally:
        end = time.monotonic()
        counts = turn.filtered.counts
        hosts = counts[0][1] if counts else 0
        left = counts[-1][2] if counts else 0
        done = turn.filtered.at or end
        trace.stage(
            'filter', start, done, hosts=hosts, passed=left,
            filters=[f'{name}: {after}' for name, _, after in counts],
        )  # fmt: skip
        if turn.filtered.at is not None:
            trace.stage(
                'weigh', done, end, hosts=left,
                instances=job.request.num_instances,
            )  # fmt: skip


def of_claim(scheduled: Sequence[ScheduledJob], sent_at: float) -> None:
    """Tell of a claim that was made for some jobs together."""
    for one in scheduled:
        trace = one.job.message.trace
        if trace is not None:
            trace.stage(
                'claim', sent_at, time.monotonic(),
                requests=len(scheduled),
                instances=len(one.result.assignments),
            )  # fmt: skip
