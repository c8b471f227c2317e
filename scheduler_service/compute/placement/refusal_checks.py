"""Asks the placement service before requests are refused.

The store may be behind: the service gives room back first where a server is
deleted, and agents and operators change traits and aggregates there. So a
request comes here before it is refused. Where hosts are kept out by no more
than the service knows better, it is asked which of them fit, and those are
read again; new hosts, and what changed in the databases, are read in any case.
Then the request is selected again. Where something else leaves no host then,
that is looked up in its turn.

Refusals of equal requests are looked up together, one such look-up after the
other: a slow service, or a caller that repeats what is impossible, takes
threads and time from nobody else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.columns.table_copies import TableCopier
from scheduler_service.compute.placement import candidates
from scheduler_service.compute.placement.client import PlacementClient
from scheduler_service.engine.jobs import HostJob
from scheduler_service.engine.messages import is_late
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.model import Request
from scheduler_service.pipeline import HostPipeline
from scheduler_service.request_filters import Scope, scope_of
from scheduler_service.stages import WaitingStage

LOG = logging.getLogger(__name__)
_THREADS = 2
# Kinds of requests that wait; beyond that a refusal stands unchecked.
_MOST_WAITING = 64
# Hosts that are read again, for each form of the request.
_HOSTS = 8
# Candidates: as many as the compute service takes.
_LIMIT = 1000
# How many requests are given back together, and the pause in seconds between:
# a whole batch at once would hold up the engine's thread.
_AT_ONCE, _PAUSE_S = 16, 0.01
# No further look-up begins so many seconds after the first one.
_LIMIT_S = 10.0
# Aggregates that a query names; with more of them it names none.
_MOST_NAMED = 100
_encode = msgspec.json.Encoder().encode
# What equal requests have in common.
Key = tuple[bytes, str | None]


class _Refused(NamedTuple):
    job: HostJob
    refusal: errors.NoValidHost


class _LookUp(NamedTuple):
    """Equal requests that are looked up together, on one copy of the hosts."""

    refused: list[_Refused]
    table: HostTable
    pipeline: HostPipeline


class RefusalChecks(WaitingStage):
    """Threads that look refusals up; nothing else takes jobs away.

    :param catch_up: has the store know what the service has of service hosts,
        and hosts that are new; returns whether that may have changed anything,
        or hosts were added since a monotonic time
    """

    name = 'candidates'

    def __init__(
        self,
        client: PlacementClient,
        queue: RequestQueue,
        catch_up: Callable[[Sequence[str], float], bool],
    ) -> None:
        super().__init__('refusals', _THREADS, queue)
        self._client = client
        self._catch_up = catch_up
        self._copier = TableCopier()
        self._looking = threading.Lock()
        self._waiting: dict[Key, _LookUp] = {}
        self._running: set[Key] = set()

    def check_refusal(
        self, job: HostJob, refusal: errors.NoValidHost, table: HostTable
    ) -> bool:
        """Take away a job that is about to be refused; return whether.

        Not if the same was looked up before.
        """
        key, pipeline = _key_of(job.request), job.attempt.pipeline
        assert pipeline is not None
        cause, now = str(refusal.facts.get('funnel')), time.monotonic()
        first = min(job.checked.values(), default=now)
        if cause in job.checked or now - first > _LIMIT_S:
            return False
        with self._looking:
            look_up = self._waiting.get(key)
            if look_up is None:
                if len(self._waiting) >= _MOST_WAITING:
                    return False
                copy = self._copier.copy(table).table
                look_up = self._waiting[key] = _LookUp([], copy, pipeline)
            job.checked[cause] = now
            look_up.refused.append(_Refused(job, refusal))
            # Before a thread can give it back.
            self._take_away([job])
        self._start()
        return True

    def _start(self) -> None:
        """Start look-ups that wait, unless an equal one is under way."""
        with self._looking:
            for key in [*self._waiting]:
                if len(self._running) == _THREADS:
                    break
                if key not in self._running:
                    self._running.add(key)
                    look_up = self._waiting.pop(key)
                    self._threads.submit(self._run, key, look_up)

    def _run(self, key: Key, look_up: _LookUp) -> None:
        is_news = False
        try:
            is_news = self._look_up(look_up)
        except errors.SchedulerError as error:
            LOG.info('A refusal could not be looked up: %s', error)
        except Exception:
            LOG.exception('A refusal could not be looked up')
        finally:
            for number, (job, refusal) in enumerate(look_up.refused):
                job.checked[next(reversed(job.checked))] = time.monotonic()
                if is_news:
                    job.look_again()
                else:
                    job.attempt.failure = refusal
                self._give_back(job)
                if number % _AT_ONCE == _AT_ONCE - 1:
                    # The engine goes on with others in between.
                    time.sleep(_PAUSE_S)
            with self._looking:
                self._running.remove(key)
            self._start()

    def _look_up(self, look_up: _LookUp) -> bool:
        """Have the store catch up; return whether it may know more now."""
        if all(is_late(job.deadline) for job, _ in look_up.refused):
            return False
        job = look_up.refused[0].job
        # Some host may offer what another form of it needs by now.
        other = job.with_pcpu or job.request.without_pcpu(only_dedicated=True)
        hosts: list[str] = []
        for form in filter(None, (job.request, other)):
            hosts += self._fitting(look_up, form)[:_HOSTS]
        since = min(job.queued_at for job, _ in look_up.refused)
        return self._catch_up(hosts, since)

    def _fitting(self, look_up: _LookUp, request: Request) -> list[str]:
        """Return the doubtful hosts that fit, as the service says."""
        table = look_up.table
        pipeline = look_up.pipeline.for_another_thread()
        with self._copier.lock:
            doubtful = pipeline.doubtful_hosts(table, request)
            scope = scope_of(
                request, table.topology.aggregates, pipeline.settings
            )
        if not doubtful.any():
            return []
        query = candidates.query_of(request, '', _LIMIT, scope)
        query += _member_of(request, scope)
        answer = self._client.allocation_candidates(query)
        by_row = candidates.by_row(table, answer['allocation_requests'])
        return [table.host_at(row) for row in by_row if doubtful[row]]


def _key_of(request: Request) -> Key:
    """Return what a request has in common with others that ask the same."""
    shape = request.shape
    if shape is None:
        same = msgspec.structs.replace(
            request, request_id=None, instance_uuids=[]
        )
        shape = _encode(same)
    return shape, request.project_id


def _member_of(request: Request, scope: Scope) -> str:
    """Return the aggregates of a query, empty where there are too many."""
    within = Scope(
        required_aggregates=scope.required_aggregates,
        forbidden_aggregates=scope.forbidden_aggregates,
    )
    listed = (*scope.required_aggregates, scope.forbidden_aggregates)
    is_named = within and sum(map(len, listed)) <= _MOST_NAMED
    return f'&{within.query()}' if is_named and request.own_resources else ''
