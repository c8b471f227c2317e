"""Requests that extenders have a say in: parked, asked about, brought back.

The engine hands over a frozen table and goes on; a thread asks the extenders
and puts the request back with their advice, to be checked against the
present, chosen and claimed. A request that concerns no extender never comes
here.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service.columns import HostTable, Overlay
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.engine.health import Health
from scheduler_service.engine.queue import HostJob
from scheduler_service.engine.table_copies import TableCopier
from scheduler_service.extender import objects
from scheduler_service.extender.chain import Asked, Chain, Outcome
from scheduler_service.extender.config import Extender
from scheduler_service.model import Placement, Request
from scheduler_service.pipeline import HostPipeline
from scheduler_service.pipeline.weigh import Ranking

LOG = logging.getLogger(__name__)
_SHOWN = 20


@dataclasses.dataclass(frozen=True, slots=True)
class ExtenderOptions:
    """How extenders are asked.

    :ivar domain: of labels, annotations and resources that are ours
    :ivar threads: requests that are asked about at once
    :ivar most_nodes: sent in one call, the best first
    :ivar rounds: how often a request is asked about anew when what was
        advised has gone
    """

    domain: str = 'scheduler-service.local'
    threads: int = 16
    most_nodes: int = 500
    rounds: int = 3


class ExtenderDispatcher:
    """Asks extenders about requests, in threads of its own.

    :param back: puts a job into the inbox again
    :param refuse: answers a job with an error, and keeps why
    :raises ConfigurationError: TLS material does not load
    """

    def __init__(
        self,
        extenders: Sequence[Extender],
        pipeline: HostPipeline,
        options: ExtenderOptions,
        health: Health,
        back: Callable[[HostJob], None],
        refuse: Callable[[HostJob, errors.SchedulerError], None],
    ) -> None:
        self.options = options
        self._pipeline = pipeline
        self._health = health
        self._back = back
        self._refuse = refuse
        self._maker = objects.NodeMaker(options.domain, pipeline.settings)
        self._pool = ThreadPoolExecutor(options.threads, 'extending')
        # Calls that go side by side; never waits for the pool above.
        self._calls = ThreadPoolExecutor(
            options.threads * max(len(extenders), 1), 'prioritize'
        )
        self._chain = Chain(extenders, self._calls, self._count)
        self._binds = any(one.bind_verb for one in extenders)
        self._lock = threading.Lock()
        self._freezer = TableCopier()
        self._parked = 0

    @property
    def busy(self) -> bool:
        """Whether requests are parked."""
        return self._parked > 0

    def concerns(self, request: Request) -> bool:
        """Whether any extender has a say in a request."""
        return self._chain.concerns(self._resources(request))

    def binds(self, request: Request) -> bool:
        """Whether an extender is to bind what is claimed for a request."""
        return self._binds and self.concerns(request)

    def park(self, job: HostJob, table: HostTable) -> None:
        """Ask about a job; it comes back, or gets its error.

        :param table: the engine's own; it is copied before this returns
        """
        job.rounds += 1
        frozen = self._freezer.freeze(table)
        self._start(job, lambda: self._advise(job, frozen.table, frozen.names))

    def bind(
        self,
        job: HostJob,
        table: HostTable,
        placements: Sequence[Placement],
        done: Callable[[], None],
        undone: Callable[[errors.ExtenderFailed], None],
    ) -> None:
        """Have placements bound; call *done*, or *undone* with the reason.

        A host's name is put into *job.banned* where it could not be bound.
        """
        frozen = self._freezer.freeze(table)

        def work() -> None:
            for placed in placements:
                chosen = placed.selected
                row = frozen.table.row_of_node(chosen.host, chosen.node)
                name = objects.node_name(chosen.node)
                if row is not None:
                    name = frozen.names[row]
                asked = self._asked(job.request, placed.instance_uuid)
                try:
                    self._chain.bind(asked, name)
                except errors.ExtenderFailed as error:
                    job.banned.add(chosen.host)
                    undone(error)
                    return
            done()

        self._start(job, work)

    def again(self, job: HostJob) -> None:
        """Have a job decided anew."""
        self._back(job)

    def stop(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._calls.shutdown(wait=False, cancel_futures=True)
        self._chain.close()

    def _start(self, job: HostJob, work: Callable[[], None]) -> None:
        with self._lock:
            self._parked += 1

        def run() -> None:
            try:
                work()
            except errors.SchedulerError as error:
                self._refuse(job, error)
            except Exception as fault:
                LOG.exception('Asking extenders failed')
                self._refuse(job, errors.as_scheduler_error(fault))
            finally:
                with self._lock:
                    self._parked -= 1

        self._pool.submit(run)

    def _count(self, extender: str, verb: str, outcome: str) -> None:
        self._health.count('extender_calls', f'{extender} {verb} {outcome}')

    def _resources(self, request: Request) -> frozenset[str]:
        return objects.pod_resources(request, self.options.domain)

    def _asked(
        self,
        request: Request,
        uuid: str,
        nodes: Callable[[Sequence[str]], list[dict[str, Any]]] | None = None,
    ) -> Asked:
        return Asked(
            objects.pod(request, uuid, self.options.domain),
            self._resources(request),
            nodes or (lambda names: []),
        )

    def _advise(
        self, job: HostJob, table: HostTable, names: list[str]
    ) -> None:
        """Ask for every instance in turn, each seeing those before it."""
        request = job.request
        if job.banned:
            ignored = sorted({*(request.ignore_hosts or ()), *job.banned})
            request = msgspec.structs.replace(request, ignore_hosts=ignored)
        overlay = Overlay(table)
        with overlay.attempt():
            advice = self._advice(request, overlay, names)
        missing = len(request.instance_uuids) - len(advice)
        job.advice = advice + [{}] * missing
        self._back(job)

    def _advice(
        self, request: Request, overlay: Overlay, names: list[str]
    ) -> list[Mapping[int, float]]:
        """Return what is added to the hosts that each instance may be on."""
        table = overlay.table
        advice: list[Mapping[int, float]] = []
        for uuid in request.instance_uuids:
            with self._freezer.lock:
                mask = self._pipeline.narrow(table, request)
                ranking = self._pipeline.rank(table, mask, request)
            if ranking is None:
                # The engine says why.
                break
            scores = self._ask(request, uuid, table, names, ranking)
            best = max(scores, key=lambda row: scores[row][1])
            stand_in = PlacedInstance(
                uuid, table.host_at(best), table.node_at(best)
            )
            overlay.take(
                best, request.resources, stand_in, request.instance_group
            )
            advice.append(
                {
                    int(table.ids[row]): bonus
                    for row, (bonus, _) in scores.items()
                }
            )
        return advice

    def _ask(
        self,
        request: Request,
        uuid: str,
        table: HostTable,
        names: list[str],
        ranking: Ranking,
    ) -> dict[int, tuple[float, float]]:
        """Return (what is added, total weight) by row of those that passed.

        :raises NoValidHost: the extenders let nobody pass
        """
        totals = dict(
            zip(ranking.rows.tolist(), ranking.totals.tolist(), strict=True)
        )
        order = ranking.best(len(ranking.rows))
        rejected: dict[str, str] = {}
        for start in range(0, len(order), self.options.most_nodes):
            rows = order[start : start + self.options.most_nodes]
            by_name = {names[row]: row for row in rows}

            def nodes(
                wanted: Sequence[str], by_name: dict[str, int] = by_name
            ) -> list[dict[str, Any]]:
                chosen = [by_name[one] for one in wanted]
                return self._maker.nodes(table, chosen, list(wanted))

            asked = self._asked(request, uuid, nodes)
            found = self._chain.filter(asked, list(by_name))
            rejected.update(found.failed)
            if found.names:
                return self._scored(asked, found, by_name, totals)
        raise _rejected(request, len(table), len(order), rejected)

    def _scored(
        self,
        asked: Asked,
        found: Outcome,
        by_name: Mapping[str, int],
        totals: Mapping[int, float],
    ) -> dict[int, tuple[float, float]]:
        bonus = dict.fromkeys(found.names, 0.0)
        if len(found.names) > 1:
            # One alone is taken, whatever its score.
            bonus = self._chain.prioritize(asked, found.names)
        return {
            by_name[name]: (more, totals[by_name[name]] + more)
            for name, more in bonus.items()
        }


def _rejected(
    request: Request, hosts: int, sent: int, why: Mapping[str, str]
) -> errors.NoValidHost:
    counts: dict[str, int] = {}
    for reason in why.values():
        counts[reason] = counts.get(reason, 0) + 1
    common = sorted(counts, key=lambda one: (-counts[one], one))[:_SHOWN]
    text = ', '.join(f'{counts[one]} {one}' for one in common[:3])
    return errors.NoValidHost(
        f'No valid host was found. Extenders left 0 of {sent} hosts: {text}',
        request_id=request.request_id,
        hosts=hosts,
        sent=sent,
        filters=[
            {
                'filter': 'extenders',
                'out': len(why),
                'alone': len(why),
                'reason': common[0] if common else '',
                'reasons': {one: counts[one] for one in common},
                'sentence': f'extenders: {len(why):,} of {sent:,}: {text}',
            }
        ],
        num_instances=request.num_instances,
        funnel=[{'filter': 'extenders', 'start': sent, 'end': 0}],
    )
