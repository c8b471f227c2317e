"""Calls HTTP extenders for requests, in threads of its own.

A request that an extender applies to leaves the engine's thread with a copy
of the host table. A thread of :class:`ExtenderDispatcher` filters and weighs
on that copy, calls the extenders, and gives the job back to the request queue
with their scores. The engine then checks the job against the newest table,
selects and claims. All other requests bypass the dispatcher, so a slow or dead
extender does not delay them.

The engine's thread calls ``run`` and ``bind``; the copy of the table and the
job belong to the dispatcher's thread until the job is back in the queue.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, MutableSet, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from scheduler_service import errors
from scheduler_service.columns import HostTable, Overlay
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.columns.table_copies import (
    TableCopier,
    TableCopy,
    node_name,
)
from scheduler_service.engine.health import Health
from scheduler_service.engine.jobs import HostJob
from scheduler_service.engine.ports import Stage, StageRecord, Undone
from scheduler_service.engine.queue import RequestQueue
from scheduler_service.engine_config import Policy
from scheduler_service.extenders import objects, policy_file
from scheduler_service.extenders.chain import Chain, ExtenderArgs
from scheduler_service.extenders.policy_file import Extender
from scheduler_service.model import Request
from scheduler_service.model.document_text import read_all
from scheduler_service.pipeline import Bonuses, HostPipeline
from scheduler_service.pipeline.weighing import Ranking
from scheduler_service.stages import WaitingStage
from scheduler_service.store.workers.stage_undoer import StageUndoer

LOG = logging.getLogger(__name__)
# Different reasons that a refusal lists.
_MAX_REASONS = 20
_REASONS_IN_MESSAGE = 3
# How often extenders are called again for a request whose hosts were taken
# before it could claim them.
_MAX_REQUERIES = 3


class ExtenderDispatcher(WaitingStage):
    """Hands requests to threads that call the extenders.

    :param domain: of the labels, annotations and resources that are ours
    :param threads: requests that wait for extenders at the same time
    :param max_nodes: in one call; the best nodes are sent first
    :param queue: lends jobs, and gets each of them back
    :raises ConfigurationError: TLS material does not load
    """

    name = 'extenders'
    is_configured = True

    def __init__(
        self,
        extenders: Sequence[Extender],
        domain: str,
        threads: int,
        max_nodes: int,
        pipeline: HostPipeline,
        health: Health,
        queue: RequestQueue,
    ) -> None:
        managed = [name for one in extenders for name in one.managed]
        self._names = objects.ResourceNames(domain, managed)
        self._max_nodes = max_nodes
        self._pipeline = pipeline
        self._nodes = objects.NodeMaker(self._names, pipeline.settings)
        super().__init__(self.name, threads, queue)
        # Prioritize calls run in parallel, in a pool of their own, since the
        # threads above wait for them.
        self._call_threads = ThreadPoolExecutor(
            threads * len(extenders), 'prioritize'
        )
        self._chain = Chain(
            extenders,
            self._call_threads,
            partial(health.count, 'extender_calls'),
        )
        self._urls = [extender.label for extender in extenders]
        self.any_binds = any(extender.bind_verb for extender in extenders)
        self._copier = TableCopier()

    def applies_to(self, request: Request) -> bool:
        """Whether any extender is called for a request."""
        return self._chain.applies_to(self._resources(request))

    def binds(self, request: Request) -> bool:
        """Whether an extender binds the placements of a request."""
        return self.any_binds and self.applies_to(request)

    def facts(self) -> Mapping[str, Any]:
        """Return the extenders' URLs, without credentials, and its jobs."""
        return {
            'configured': len(self._urls),
            'requests_with_them': self._pending,
            'urls': self._urls,
        }

    def run(self, jobs: Sequence[HostJob], table: HostTable) -> None:
        """Take away jobs that extenders are to be asked about."""
        for job in jobs:
            given = job.attempt
            if given.extender_scores is None and self.applies_to(job.request):
                given.extender_rounds += 1
                copy = self._copier.copy(table)
                self._lend(job, partial(self._query, job, copy))

    def forget(self, job: HostJob, table: HostTable | None) -> bool:
        """Have extenders asked again where all that they passed is taken."""
        scores = job.attempt.extender_scores
        if (
            not scores
            or job.attempt.extender_rounds > _MAX_REQUERIES
            or (table is not None and not all(scores))
        ):
            return False
        job.begin_anew(scores=False)
        return True

    def bind(
        self, job: HostJob, table: HostTable, record: Callable[[], None]
    ) -> None:
        """Take a job away to bind its placements.

        Where that fails, the host is among its ``excluded_hosts``.

        :param record: records on the thread that they may be bound
        """
        copy = self._copier.copy(table)
        self._lend(job, partial(self._bind_all, job, copy, record))

    def _bind_all(
        self, job: HostJob, copy: TableCopy, record: Callable[[], None]
    ) -> None:
        record()
        for placement in job.attempt.placements:
            selected = placement.selected
            row = copy.table.row_of_node(selected.host, selected.node)
            name = node_name(selected.node) if row is None else copy.names[row]
            args = self._args(job.request, placement.instance_uuid)
            try:
                self._chain.bind(args, name)
            except errors.ExtenderFailed as error:
                job.excluded_hosts[selected.host] = str(error)
                raise

    def stop(self) -> None:
        """End the threads and close the connections."""
        super().stop()
        self._call_threads.shutdown(wait=False, cancel_futures=True)
        self._chain.close()

    def _resources(self, request: Request) -> frozenset[str]:
        return frozenset(self._names.of(request.resources))

    def _args(
        self,
        request: Request,
        uuid: str,
        nodes: Callable[[Sequence[str]], list[dict[str, Any]]] | None = None,
        deadline: float | None = None,
    ) -> ExtenderArgs:
        return ExtenderArgs(
            objects.pod(request, uuid, self._names),
            self._resources(request),
            nodes or (lambda names: []),
            deadline,
        )

    def _query(self, job: HostJob, copy: TableCopy) -> None:
        request = job.request
        if job.excluded_hosts:
            ignored = sorted(
                {*(request.ignore_hosts or ()), *job.excluded_hosts}
            )
            request = request.having(ignore_hosts=ignored)
        scores = self._scores_of_instances(
            request, copy, job.attempt.bounds(), job.deadline
        )
        # For the missing instances the engine finds the reasons.
        missing = len(request.instance_uuids) - len(scores)
        job.attempt.extender_scores = scores + [{}] * missing

    def _scores_of_instances(
        self,
        request: Request,
        copy: TableCopy,
        bounds: Bonuses | None,
        deadline: float | None,
    ) -> list[Mapping[int, float]]:
        """Return the extenders' score by host id, for each instance in turn.

        Extenders are called for each instance with those before it on their
        best hosts. The list ends before the first instance that fits nowhere.

        :param bounds: hosts that each instance may be on; None: any
        """
        table = copy.table
        scores: list[Mapping[int, float]] = []
        overlay = Overlay(table)
        with overlay.transaction():
            for at, uuid in enumerate(request.instance_uuids):
                with self._copier.lock:
                    mask = self._pipeline.filter_hosts(table, request)
                    if bounds is not None:
                        ids = sorted(bounds[min(at, len(bounds) - 1)])
                        mask = mask & np.isin(table.ids, ids)
                    ranking = self._pipeline.weigh_hosts(table, mask, request)
                if ranking is None:
                    break
                by_row = self._scores(request, uuid, copy, ranking, deadline)
                best = max(by_row, key=lambda row: by_row[row][1])
                instance = PlacedInstance(
                    uuid, table.host_at(best), table.node_at(best)
                )
                overlay.assume(
                    best, request.resources, instance, request.instance_group
                )
                scores.append(
                    {
                        int(table.ids[row]): score
                        for row, (score, _) in by_row.items()
                    }
                )
        return scores

    def _scores(
        self,
        request: Request,
        uuid: str,
        copy: TableCopy,
        ranking: Ranking,
        deadline: float | None,
    ) -> dict[int, tuple[float, float]]:
        """Return (extenders' score, total weight) by row, of rows that passed.

        Nodes are sent best first, ``max_nodes`` at a time, until some pass.

        :raises NoValidHost: the extenders let no node pass
        :raises TooLate: the deadline passed before all were called
        """
        table, names = copy.table, copy.names
        weights = dict(
            zip(ranking.rows.tolist(), ranking.totals.tolist(), strict=True)
        )
        order = ranking.best(len(ranking.rows))
        rejected: dict[str, str] = {}
        for start in range(0, len(order), self._max_nodes):
            rows = order[start : start + self._max_nodes]
            by_name = {names[row]: row for row in rows}

            def nodes(
                sent: Sequence[str], by_name: dict[str, int] = by_name
            ) -> list[dict[str, Any]]:
                chosen = [by_name[name] for name in sent]
                return self._nodes.nodes(table, chosen, list(sent))

            args = self._args(request, uuid, nodes, deadline)
            passed, failed = self._chain.filter(args, list(by_name))
            rejected.update(failed)
            if passed:
                # An only node is selected whatever its score.
                scores = {passed[0]: 0.0}
                if len(passed) > 1:
                    scores = self._chain.prioritize(args, passed)
                return {
                    by_name[name]: (score, weights[by_name[name]] + score)
                    for name, score in scores.items()
                }
        raise _no_valid_host(request, len(table), len(order), rejected)


def _no_valid_host(
    request: Request, hosts: int, sent: int, reasons: Mapping[str, str]
) -> errors.NoValidHost:
    counts = Counter(reasons.values())
    common = sorted(counts, key=lambda reason: (-counts[reason], reason))
    common = common[:_MAX_REASONS]
    summary = ', '.join(
        f'{counts[reason]} {reason}' for reason in common[:_REASONS_IN_MESSAGE]
    )
    return errors.NoValidHost(
        'No valid host was found. '
        f'Extenders left 0 of {sent} hosts: {summary}',
        request_id=request.request_id,
        hosts=hosts,
        sent=sent,
        filters=[
            {
                'filter': 'extenders',
                'out': len(reasons),
                'alone': len(reasons),
                'reason': common[0] if common else '',
                'reasons': {reason: counts[reason] for reason in common},
                'sentence': f'extenders: {len(reasons):,} of {sent:,}: '
                f'{summary}',
            }
        ],
        num_instances=request.num_instances,
        funnel=[{'filter': 'extenders', 'start': sent, 'end': 0}],
    )


class Bind(Stage):
    """Has an extender bind what is claimed.

    There is no call of an extender that unbinds: where the claim is released,
    this is logged and counted.
    """

    name = 'bind'
    is_configured = is_recorded = True

    def __init__(
        self,
        dispatcher: ExtenderDispatcher,
        health: Health,
        undoer: StageUndoer,
    ) -> None:
        self._dispatcher = dispatcher
        self._health = health
        self._undoer = undoer

    def prepare(self, job: HostJob) -> None:
        """Record what may be bound with its claim."""
        if job.is_first_claim and self._dispatcher.binds(job.request):
            uuids = job.request.instance_uuids
            job.attempt.records[self.name] = dict.fromkeys(uuids, '{}')

    def run(self, jobs: Sequence[HostJob], table: HostTable) -> None:
        """Take away jobs that an extender binds."""
        for job in jobs:
            if self._dispatcher.binds(job.request):
                record = partial(self._record, job)
                self._dispatcher.bind(job, table, record)

    def _record(self, job: HostJob) -> None:
        intents = [
            (placement.instance_uuid, placement.selected.uuid, '{}')
            for placement in job.attempt.placements
        ]
        if self.name not in job.attempt.records:
            self._undoer.intend(self, lambda: intents, job.deadline)
        # Nothing can be undone, however the call ends.
        self._undoer.ended(self, intents, True)

    def undo_all(
        self, records: Sequence[StageRecord], unsure: MutableSet[str]
    ) -> dict[str, Undone | Exception]:
        """Say that claims are released that an extender may have bound."""
        for record in records:
            if not record.looks:
                LOG.warning(
                    'Instance %s may stay bound to host %s: no extender can '
                    'unbind it',
                    record.instance_uuid,
                    record.host,
                )
                self._health.count('extender_binds_left')
        return {record.instance_uuid: Undone.DONE for record in records}


def _warn(parsed: policy_file.PolicyFile, path: str) -> None:
    """Log which keys of a policy file have no effect."""
    for place in parsed.unknown:
        LOG.warning('%s: %s: unknown key, ignored', path, place)
    for place in parsed.unused:
        LOG.warning('%s: %s: has no effect here', path, place)


def policy(conf: Any) -> Policy:
    """Return the policy file's filters, weighers and extenders.

    :raises ConfigurationError: the file is unreadable or invalid
    """
    group = conf.extender
    path = group.policy_file
    try:
        with open(path, 'rb') as file:
            text = read_all(file)
    except OSError as fault:
        raise errors.ConfigurationError(
            f'[extender] policy_file cannot be read: {fault}'
        ) from None
    parsed = policy_file.read(text, path)
    if group.ignore_unknown_predicates:
        parsed, left_out = policy_file.with_equivalents(parsed)
        for name in left_out:
            LOG.warning('%s: %s: has no equivalent, ignored', path, name)
    _warn(parsed, path)
    if conf.compute.use_placement and any(
        extender.bind_verb for extender in parsed.extenders
    ):
        raise errors.ConfigurationError(
            'An extender with a bindVerb cannot be used with '
            '[compute] use_placement'
        )
    filters = weighers = None
    multipliers: dict[str, Any] = {}
    if parsed.predicates is not None:
        filters = policy_file.filters(parsed.predicates)
    if parsed.priorities is not None:
        weighers, multipliers = policy_file.weighers(parsed.priorities)

    limits = group.domain, group.threads, group.max_nodes

    def stages(
        pipeline: HostPipeline,
        health: Health,
        queue: RequestQueue,
        undoer: StageUndoer,
    ) -> list[Stage]:
        dispatcher = ExtenderDispatcher(
            parsed.extenders, *limits, pipeline, health, queue
        )
        if not dispatcher.any_binds:
            return [dispatcher]
        return [dispatcher, Bind(dispatcher, health, undoer)]

    made = stages if parsed.extenders else None
    return Policy(filters, weighers, multipliers, made)
