"""Stages that ask the placement service, before a choice and before a refusal.

A request that columns cannot decide leaves the engine's thread with a copy of
the host table. A thread of :class:`CandidateStage` ranks the hosts on it and
queries the best of them, a tree of providers at a time: that takes the
service little time, however many hosts there are. After some hosts without a
candidate it queries all at once, as the compute service does. The job comes
back with its candidates, among whose hosts the engine selects.

Before a request is refused the service is asked too. The store may be behind:
the service gives room back first where a server is deleted, and agents and
operators change traits and aggregates there. So a request comes here before
it is refused. Where hosts are kept out by no more than the service knows
better, it is asked which of them fit, and those are read again; new hosts,
and what changed in the databases, are read in any case. Then the request is
selected again. Where something else leaves no host then, that is looked up in
its turn.

Refusals of equal requests are looked up together, one such look-up after the
other: a slow service, or a caller that repeats what is impossible, takes
threads and time from nobody else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table_copies import TableCopier
from scheduler_service.compute.placement import candidates
from scheduler_service.compute.placement.candidates import (
    Candidates,
    SharedProviders,
    Tree,
)
from scheduler_service.compute.placement.client import PlacementClient
from scheduler_service.engine.jobs import HostJob
from scheduler_service.engine.messages import is_late
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.model import Request
from scheduler_service.pipeline import HostPipeline
from scheduler_service.request_filters import Scope, scope_of
from scheduler_service.stages import WaitingStage

_THREADS = 4
# How often candidates are asked for.
_ROUNDS = 3
# Hosts with a query of their own; for about 20 the service takes as long as
# for a query of all.
_HOSTS = 8
_MISSES = 2
# Candidates of a host, and of all: as many as the compute service takes.
_LIMIT_OF_HOST = 50
_LIMIT = 1000
# Groups that a refusal looks at.
_GROUPS = 5
_REQUESTS = 'allocation_requests'
# Candidates of a row -> those whose devices fit the host.
Fitting = Callable[[int, Sequence[Tree]], Sequence[Tree]]
LOG = logging.getLogger(__name__)
_CHECKING_THREADS = 2
# Kinds of requests that wait; beyond that a refusal stands unchecked.
_MOST_WAITING = 64
# Hosts that are read again, for each form of the request.
# Candidates: as many as the compute service takes.
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


class CandidateStage(WaitingStage):
    """Threads that query the service for candidates."""

    name = 'candidates'

    def __init__(
        self,
        client: PlacementClient,
        shared: SharedProviders,
        queue: RequestQueue,
    ) -> None:
        super().__init__(self.name, _THREADS, queue)
        self._client = client
        self._shared = shared
        self._copier = TableCopier()

    def run(self, jobs: Sequence[HostJob], table: HostTable) -> None:
        """Take away jobs that need candidates and have none."""
        for job in jobs:
            given, request = job.attempt, job.attempt.request
            assert request is not None
            if (
                given.candidates is None
                and not request.is_rebuild
                and candidates.is_needed(request)
            ):
                given.candidate_rounds += 1
                given.candidate_hosts = table.ids
                copy = self._copier.copy(table).table
                self._lend(job, partial(self._find, job, request, copy))

    def forget(self, job: HostJob, table: HostTable | None) -> bool:
        """Have candidates found again where others may be there."""
        found, rounds = job.attempt.candidates, job.attempt.candidate_rounds
        if (
            found is None
            or rounds >= _ROUNDS
            # Nothing was lost, and no host was added, since they were found.
            or (
                table is not None
                and found.is_whole
                and not job.attempts
                and np.array_equal(job.attempt.candidate_hosts, table.ids)
            )
        ):
            return False
        job.begin_anew(candidates=False)
        return True

    def _find(self, job: HostJob, request: Request, table: HostTable) -> None:
        pipeline = job.attempt.pipeline
        assert pipeline is not None
        job.attempt.candidates = self._candidates(
            job, request, table, pipeline.for_another_thread()
        )

    def _candidates(
        self,
        job: HostJob,
        request: Request,
        table: HostTable,
        pipeline: HostPipeline,
    ) -> Candidates:
        """Return the candidates of a job."""
        settings, count = pipeline.settings, request.num_instances
        with self._copier.lock:
            mask = pipeline.filter_hosts(table, request)
            ranking = pipeline.weigh_hosts(table, mask, request)
            scope = scope_of(request, table.topology.aggregates, settings)
        if ranking is None:
            # The engine gives the reasons.
            return Candidates(count, is_whole=True)

        def fitting(row: int, trees: Sequence[Tree]) -> Sequence[Tree]:
            """Return the candidates of a host with the right PCI devices."""
            placed = any(device.groups for device in request.pci_requests)
            if request.forced or not mask[row] or not placed:
                return trees
            with self._copier.lock:
                return [
                    tree
                    for tree in trees
                    if pipeline.has_devices(
                        table, row, candidates.with_devices(request, tree)
                    )
                ]

        # A host for each instance, with alternates, to choose among.
        needed = max(
            count + settings.max_attempts - 1, settings.host_subset_size
        )
        if (
            job.attempt.candidate_rounds == 1
            and needed <= _HOSTS
            and not self._shared.gives(request.own_resources)
        ):
            rows = ranking.best(_HOSTS)
            best = self._of_best(
                job, request, table, rows, needed, scope, fitting
            )
            if len(best) >= count:
                return best
        return self._of_all(job, request, table, mask, scope, fitting)

    def _of_best(
        self,
        job: HostJob,
        request: Request,
        table: HostTable,
        rows: Sequence[int],
        needed: int,
        scope: Scope,
        fitting: Fitting,
    ) -> Candidates:
        """Query a host after the other, best first, until enough fit."""
        result = Candidates(request.num_instances)
        misses = 0
        for row in rows:
            provider = table.coded['uuid'].at(row)
            query = candidates.query_of(
                request, provider, _LIMIT_OF_HOST, scope
            )
            answer = self._query(job, query)
            trees = fitting(row, list(map(Tree.of, answer[_REQUESTS])))
            misses = 0 if trees else misses + 1
            if trees:
                result.add(provider, table.ids.item(row), trees)
                result.add_free(answer['provider_summaries'])
            if misses == _MISSES or len(result) == needed:
                break
        return result

    def _of_all(
        self,
        job: HostJob,
        request: Request,
        table: HostTable,
        mask: Mask,
        scope: Scope,
        fitting: Fitting,
    ) -> Candidates:
        for limit in (_LIMIT, 0):
            query = candidates.query_of(request, '', limit, scope)
            answer = self._query(job, query)
            is_cut = bool(limit) and len(answer[_REQUESTS]) >= limit
            by_row = {
                row: fitting(row, trees)
                for row, trees in candidates.by_row(
                    table, answer[_REQUESTS]
                ).items()
            }
            if any(mask[row] for row in by_row if by_row[row]) or not is_cut:
                break
        if not by_row:
            raise self._refusal(job, request, len(table), scope)
        result = Candidates(request.num_instances, is_whole=True)
        for row, trees in by_row.items():
            if trees:
                provider = table.coded['uuid'].at(row)
                result.add(provider, table.ids.item(row), trees)
        result.add_free(answer['provider_summaries'])
        return result

    def _query(self, job: HostJob, query: str) -> Mapping[str, Any]:
        if is_late(job.deadline):
            raise errors.TooLate()
        return self._client.allocation_candidates(query)

    def _refusal(
        self, job: HostJob, request: Request, hosts: int, scope: Scope
    ) -> errors.NoValidHost:
        """Return the error for a request without any candidate.

        It names the groups without which there would be some.

        :param hosts: how many there are
        """
        suffixes = [group.suffix for group in request.provider_groups]
        suffixes += [''] if request.own_resources else []
        missing = suffixes
        if len(suffixes) > 1:
            query = partial(candidates.query_of, request, '', 1, scope)
            missing = [
                suffix
                for suffix in suffixes[:_GROUPS]
                if self._query(job, query(suffix))[_REQUESTS]
            ]
        reasons = [
            f'no candidate with {candidates.described(request, suffix)}'
            for suffix in missing
        ] or ['no candidate with all groups together']
        return errors.NoValidHost(
            'No valid host was found. The placement service has '
            + '; '.join(reasons),
            request_id=request.request_id,
            hosts=hosts,
            num_instances=request.num_instances,
            filters=[
                {
                    'filter': 'placement',
                    'out': hosts,
                    'alone': hosts,
                    'reason': reason,
                    'sentence': f'placement: {reason}',
                }
                for reason in reasons
            ],
            funnel=[{'filter': 'placement', 'start': hosts, 'end': 0}],
        )


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
        super().__init__('refusals', _CHECKING_THREADS, queue)
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
                if len(self._running) == _CHECKING_THREADS:
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
