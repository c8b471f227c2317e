"""Queries the placement service for requests that columns cannot decide.

Such a request leaves the engine's thread with a copy of the host table. A
thread of :class:`CandidateStage` ranks the hosts on it and queries the best of
them, a tree of providers at a time: that takes the service little time,
however many hosts there are. After some hosts without a candidate it queries
all at once, as the compute service does. The job comes back with its
candidates, among whose hosts the engine selects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.columns.dictionary import Mask
from scheduler_service.columns.table_copies import TableCopier
from scheduler_service.compute.placement import candidates
from scheduler_service.compute.placement.candidates import Candidates, Tree
from scheduler_service.compute.placement.client import PlacementClient
from scheduler_service.compute.placement.sharing import SharedProviders
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
