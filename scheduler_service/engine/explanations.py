"""Explains requests on a thread of its own: which filter says what, and why.

The engine's thread hands over a job with a copy of the host table; both belong
to the explainer's thread until it gives the job back with its result. The
queue gives out one explanation after the other, so that there is one copy at a
time, and callers who ask why take little from those who ask for hosts.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from scheduler_service import errors, time_slice
from scheduler_service.columns import HostTable, Overlay
from scheduler_service.columns.topology import Topology
from scheduler_service.engine.jobs import ExplainJob
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.model import Request
from scheduler_service.pipeline import HostPipeline, explain
from scheduler_service.pipeline.selection import explanation

# How long the instances of a request may be placed, in seconds: others wait.
_MOST_S = 5.0


class Explainer:
    """Explains requests; nothing is claimed.

    :param pipeline: of the engine, whose filters and weighers are used
    """

    def __init__(
        self, pipeline: HostPipeline, rng: random.Random, queue: RequestQueue
    ) -> None:
        self.use(pipeline)
        self._rng = rng
        self._queue = queue
        self._thread = ThreadPoolExecutor(1, 'explain')

    def use(self, pipeline: HostPipeline) -> None:
        """Explain what comes from now on by another pipeline."""
        self._pipeline = pipeline.for_another_thread()

    def explain(self, job: ExplainJob, table: HostTable) -> None:
        """Have a job explained.

        :param table: the newest; it is copied before this returns
        """
        # What it memoizes belongs to the thread that explains.
        copied = table.copy(Topology(table.topology.aggregates))
        self._queue.lend([job])
        self._thread.submit(self._explain, self._pipeline, job, copied)

    def stop(self) -> None:
        """Explain nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _explain(
        self, pipeline: HostPipeline, job: ExplainJob, table: HostTable
    ) -> None:
        try:
            request = job.request.with_ids()
            table.find_groups(request)
            if not request.lenient and not request.is_rebuild:
                pipeline.group_policies.check(table, request)
            pipeline.check_devices(request)
            reports = [
                self._explanation(pipeline, table, form, job.host)
                for form in request.forms(table.resources)
            ]
            found = (one for one in reports if 'error' not in one)
            job.finish(next(found, reports[0]))
        except BaseException as fault:
            job.fail(errors.as_scheduler_error(fault))
        finally:
            self._queue.give_back(job)

    def _explanation(
        self,
        pipeline: HostPipeline,
        table: HostTable,
        request: Request,
        host: str | None,
    ) -> dict[str, Any]:
        results = pipeline.filter_results(table, request)
        subject = explain.Subject(table, request, pipeline.settings)
        report: dict[str, Any] = {
            'request_id': request.request_id,
            'filters': explain.rejections(results, subject),
        }
        if host is not None:
            report['nodes'] = explain.host_report(results, subject, host)
        time_slice.begin(_MOST_S, lambda: request.num_instances > 1)
        try:
            result = pipeline.select(Overlay(table), request, self._rng)
        except errors.NoValidHost as error:
            report['error'] = error.to_dict()
            return report
        except time_slice.TimeSliceOver:
            raise errors.PayloadTooLarge(
                f'{request.num_instances} instances are not placed within '
                f'{_MOST_S:g} s: explain fewer'
            ) from None
        finally:
            time_slice.end()
        return {
            **report,
            **explanation(result.reasons),
            'placements': [made.placement for made in result.assignments],
        }
