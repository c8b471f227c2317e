"""Orders hosts for a service that asks after its own filters and weighers.

Such a service, a fork of the compute service for example, sends the hosts that
it would take with the weights that it gave them. They are filtered and weighed
here once more, with what the store knows of them. Nothing is claimed.
:class:`HostOrderer` owns copies of the newest host table; any thread may call
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scheduler_service.columns import HostTable
from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.engine.table_copies import TableCopier
from scheduler_service.model import Request
from scheduler_service.pipeline import HostPipeline
from scheduler_service.store.records.decisions import Decision

KIND = 'external'
# So many of the best are recorded.
_RECORDED = 10


class SentHost(NamedTuple):
    """A host as it is sent.

    :ivar node: None: any node of the service host
    """

    name: str
    node: str | None = None


class ExternalOptions(NamedTuple):
    """How hosts are ordered.

    :ivar multiplier: of the weights that are sent
    :ivar keep_unknown: hosts that the store does not know come last; else
        they are left out
    """

    multiplier: float = 1.0
    keep_unknown: bool = True


class HostOrderer:
    """Filters and orders hosts that are sent.

    :param snapshot: gives the newest snapshot, None before the first
    :param record: stores a decision
    """

    def __init__(
        self,
        pipeline: HostPipeline,
        snapshot: Callable[[], Snapshot | None],
        record: Callable[[Decision], None],
        options: ExternalOptions,
    ) -> None:
        self._pipeline = pipeline
        self._snapshot = snapshot
        self._record = record
        self._options = options
        self._copier = TableCopier()

    def use(self, pipeline: HostPipeline, options: ExternalOptions) -> None:
        """Order by another pipeline, from the next call on."""
        with self._copier.lock:
            self._pipeline = pipeline
            self._options = options
            self._copier.forget()

    def order(
        self,
        request: Request,
        hosts: Sequence[SentHost],
        weights: Mapping[str, float],
    ) -> list[str]:
        """Return the names of the hosts that pass, best first.

        Only names that were sent, each once; those with one weight in the
        order in which they were sent.

        :param weights: of hosts by name; one without gets the least
        :raises NoValidHost: a request filter refuses the request
        :raises FilterFault: a filter or weigher failed
        """
        snapshot = self._snapshot()
        keep_unknown = self._options.keep_unknown
        known: list[tuple[str, int]] = []
        unknown = [host.name for host in hosts]
        funnel: list[dict[str, Any]] = []
        ordered: list[str] = []
        if snapshot is not None:
            with self._copier.lock:
                keep_unknown = self._options.keep_unknown
                table = self._copier.copy(snapshot.hosts).table
                known, unknown = _split(table, hosts)
                passed = self._filter(table, request, known, funnel)
                ordered = self._sort(table, request, passed, weights)
        if keep_unknown:
            ordered += unknown
        names = list(dict.fromkeys(ordered))
        outcome = 'ordered' if names else 'NoValidHost'
        reasons = {
            'project_id': request.project_id,
            'hosts': len(hosts),
            'unknown': len(unknown),
            'funnel': funnel,
            'best': names[:_RECORDED],
        }
        decision = Decision.of(request.request_id, KIND, outcome, reasons)
        self._record(decision)
        return names

    def _filter(
        self,
        table: HostTable,
        request: Request,
        known: Sequence[tuple[str, int]],
        funnel: list[dict[str, Any]],
    ) -> list[tuple[str, int]]:
        """Return the hosts that pass; *funnel* gets the counts."""
        rows = np.array([row for _, row in known], np.intp)
        passing = np.ones(len(rows), np.bool_)
        for one, mask in self._pipeline.filter_results(table, request):
            start = int(np.count_nonzero(passing))
            passing &= mask[rows]
            end = int(np.count_nonzero(passing))
            if end < start:
                funnel.append({'filter': one.name, 'start': start, 'end': end})
        return [known[at] for at in np.flatnonzero(passing).tolist()]

    def _sort(
        self,
        table: HostTable,
        request: Request,
        passed: Sequence[tuple[str, int]],
        weights: Mapping[str, float],
    ) -> list[str]:
        """Return names by the sum of our weights and those that were sent."""
        rows = np.array([row for _, row in passed], np.intp)
        ranking = self._pipeline.weigh_hosts(
            table, table.mask_of(rows), request
        )
        if ranking is None:
            return []
        totals = np.zeros(len(table))
        totals[ranking.rows] = ranking.totals
        sent = _normalised([weights.get(name) for name, _ in passed])
        sums = totals[rows] + self._options.multiplier * sent
        order = np.argsort(-sums, kind='stable')
        return [passed[at][0] for at in order.tolist()]


def _split(
    table: HostTable, hosts: Sequence[SentHost]
) -> tuple[list[tuple[str, int]], list[str]]:
    """Return (name, row) of the hosts that are stored, and other names."""
    rows: Mapping[tuple[str, str], int] = table.topology.memoize(
        'rows by host and node',
        lambda: {
            (table.host_at(row), table.node_at(row)): row
            for row in range(len(table))
        },
    )
    known, unknown = [], []
    for name, node in hosts:
        row = rows.get((name, name if node is None else node))
        if row is None and node is None:
            row = next(iter(table.rows_of_host(name).tolist()), None)
        if row is None:
            unknown.append(name)
        else:
            known.append((name, row))
    return known, unknown


def _normalised(weights: Sequence[float | None]) -> Any:
    """Return weights from 0 to 1, as those of a weigher are."""
    given = [weight for weight in weights if weight is not None]
    low, high = min(given, default=0.0), max(given, default=0.0)
    if not high > low:
        return np.zeros(len(weights))
    values = np.array([low if one is None else one for one in weights])
    # Half of each, since the difference may be too large for a float.
    return (values / 2 - low / 2) / (high / 2 - low / 2)
