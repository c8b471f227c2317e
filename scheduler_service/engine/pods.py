"""The service as a kube-scheduler's extender: evaluates nodes for a pod.

A node that the store knows is evaluated as it is stored; any other by the
object that was sent. :class:`PodEvaluator` owns copies of the newest host
table and a cache of nodes it has read; any thread may call it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from scheduler_service.columns import HostTable, build_table
from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.engine.table_copies import TableCopier
from scheduler_service.extender import reading, wire
from scheduler_service.filters.base import HostFilter
from scheduler_service.filters.support.capacity import CapacityFilter
from scheduler_service.filters.support.count import CountFilter
from scheduler_service.model import Aggregate, Host, Request
from scheduler_service.pipeline import HostPipeline

_MAX_SCORE = 10
_MAX_REASON_LENGTH = 1000
# Reasons are computed for so many nodes that one filter rejects; the others
# get the last of these.
_MAX_REASONS = 200
_MAX_CACHED_NODES = 20_000
# Filters that look at load, which changes as pods come and go.
_MAY_PASS_LATER = frozenset(
    (
        'RetryFilter',
        'MetricsFilter',
        'ServerGroupAffinityFilter',
        'ServerGroupAntiAffinityFilter',
        'GroupAffinityFilter',
        'GroupAntiAffinityFilter',
        'DifferentHostFilter',
        'SameHostFilter',
        'TypeAffinityFilter',
        'resources',
    )
)


class Nodes(NamedTuple):
    """The nodes of one call.

    :ivar names: in the order they were sent
    :ivar document: gives a v1 Node by its name, as ``msgspec.Raw`` or parsed;
        None where only names were sent
    """

    names: Sequence[str]
    document: Callable[[str], Any] | None = None


class Verdict(NamedTuple):
    """The result of a filter call.

    :ivar passed: names of nodes, in the order they were sent
    :ivar failed: node -> reason, for those that may pass later
    :ivar never: node -> reason, for those that evicting pods cannot help
    """

    passed: list[str]
    failed: dict[str, str]
    never: dict[str, str]


class PodEvaluator:
    """Filters and scores nodes for pods.

    :param snapshot: gives the newest snapshot, None before the first
    :param domain: of the labels, annotations and resources that are ours
    """

    def __init__(
        self,
        pipeline: HostPipeline,
        snapshot: Callable[[], Snapshot | None],
        domain: str,
    ) -> None:
        self._pipeline = pipeline
        self._snapshot = snapshot
        self._domain = domain
        self._copier = TableCopier()
        # Digest of a node's JSON -> the host and zone read from it.
        self._cached_nodes: dict[bytes, tuple[Host, str | None]] = {}

    def use(self, pipeline: HostPipeline) -> None:
        """Evaluate by another pipeline, from the next call on."""
        with self._copier.lock:
            self._pipeline = pipeline
            self._copier.forget()

    def filter(self, pod: Any, nodes: Nodes) -> Verdict:
        """Return which nodes pass, and the reasons of the others.

        A node whose object cannot be read fails alone.

        :raises WireError: the pod cannot be read
        """
        request = reading.pod_request(pod, self._domain)
        failed: dict[str, str] = {}
        never: dict[str, str] = {}
        out: set[str] = set()
        with self._copier.lock:
            for table, rows, unread in self._tables(nodes):
                failed.update(unread)
                if rows:
                    self._filter(table, rows, request, failed, never)
        out.update(failed, never)
        passed = [name for name in nodes.names if name not in out]
        return Verdict(passed, failed, never)

    def prioritize(self, pod: Any, nodes: Nodes) -> dict[str, int]:
        """Return scores of 0 to 10, the best node's 10.

        :raises WireError: the pod cannot be read
        """
        request = reading.pod_request(pod, self._domain)
        weights: dict[str, float] = dict.fromkeys(nodes.names, 0.0)
        with self._copier.lock:
            for table, rows, _ in self._tables(nodes):
                if not rows:
                    continue
                sent = np.fromiter(rows.values(), np.int64, len(rows))
                ranking = self._pipeline.weigh_hosts(
                    table, table.mask_of(sent), request
                )
                if ranking is None:
                    continue
                totals = np.zeros(len(table))
                totals[ranking.rows] = ranking.totals
                weights.update(zip(rows, totals[sent].tolist(), strict=True))
        return _scores(weights)

    def _tables(
        self, nodes: Nodes
    ) -> list[tuple[HostTable, dict[str, int], dict[str, str]]]:
        """Return (table, name -> row, name -> reason) of the nodes.

        Stored nodes are in a copy of the newest table, the others in a table
        made of their documents. Reasons are of nodes in neither.
        """
        snapshot = self._snapshot()
        stored: dict[str, int] = {}
        tables: list[tuple[HostTable, dict[str, int], dict[str, str]]] = []
        if snapshot is not None:
            copy = self._copier.copy(snapshot.hosts)
            stored = {
                name: copy.rows[name]
                for name in nodes.names
                if name in copy.rows
            }
            tables.append((copy.table, stored, {}))
        others = [name for name in nodes.names if name not in stored]
        if others and nodes.document is not None:
            tables.append(self._table_of(others, nodes.document))
        elif others:
            unknown = {
                name: f'node {name[:100]} is not known here' for name in others
            }
            tables.append((build_table([]), {}, unknown))
        return tables

    def _table_of(
        self, names: Sequence[str], document: Callable[[str], Any]
    ) -> tuple[HostTable, dict[str, int], dict[str, str]]:
        hosts: list[tuple[int, Host]] = []
        zones: dict[str, list[str]] = {}
        rows: dict[str, int] = {}
        unread: dict[str, str] = {}
        for name in names:
            try:
                host, zone = self._host(document(name))
            except wire.WireError as fault:
                reason = f'the node cannot be read: {fault}'
                unread[name] = reason[:_MAX_REASON_LENGTH].replace(
                    '%', ' percent'
                )
                continue
            rows[name] = len(hosts)
            hosts.append((len(hosts), host))
            if zone:
                zones.setdefault(zone, []).append(host.host)
        aggregates = [
            Aggregate(
                id=number, hosts=members, metadata={'availability_zone': zone}
            )
            for number, (zone, members) in enumerate(zones.items())
        ]
        return build_table(hosts, aggregates), rows, unread

    def _host(self, node: Any) -> tuple[Host, str | None]:
        """Return a v1 Node as (host, zone).

        What was read from JSON is cached by its digest: a kube-scheduler
        sends each node twice for each pod.
        """
        if not isinstance(node, msgspec.Raw):
            return reading.node_host(node, self._domain)
        key = hashlib.blake2b(node, digest_size=16).digest()
        cached = self._cached_nodes.get(key)
        if cached is None:
            if len(self._cached_nodes) >= _MAX_CACHED_NODES:
                self._cached_nodes.clear()
            document = msgspec.json.decode(node)
            cached = reading.node_host(document, self._domain)
            self._cached_nodes[key] = cached
        return cached

    def _filter(
        self,
        table: HostTable,
        rows: Mapping[str, int],
        request: Request,
        failed: dict[str, str],
        never: dict[str, str],
    ) -> None:
        """Add rejected nodes to *failed* or *never*, by the first filter.

        :param rows: node name -> row of the table
        """
        names = list(rows)
        sent = np.fromiter(rows.values(), np.int64, len(rows))
        passing = np.ones(len(sent), np.bool_)
        for host_filter, mask in self._pipeline.filter_results(table, request):
            rejected = passing & ~mask[sent]
            if not rejected.any():
                continue
            passing &= ~rejected
            into = failed if _may_pass_later(host_filter) else never
            text = host_filter.name
            for number, index in enumerate(np.flatnonzero(rejected).tolist()):
                if number < _MAX_REASONS:
                    reason = host_filter.reason(
                        table,
                        int(sent[index]),
                        request,
                        self._pipeline.settings,
                    )
                    text = f'{host_filter.name}: {reason}'
                    text = text[:_MAX_REASON_LENGTH]
                into[names[index]] = text.replace('%', ' percent')


def _may_pass_later(host_filter: HostFilter) -> bool:
    """Whether a filter looks at load, and evicting pods may help."""
    return (
        isinstance(host_filter, CapacityFilter | CountFilter)
        or host_filter.name in _MAY_PASS_LATER
    )


def _scores(weights: Mapping[str, float]) -> dict[str, int]:
    """Return weights as scores of 0 to 10, rounded half up; 0 if all equal."""
    low = min(weights.values(), default=0.0)
    span = max(weights.values(), default=0.0) - low
    if span <= 0.0:
        return dict.fromkeys(weights, 0)
    return {
        name: int((weight - low) / span * _MAX_SCORE + 0.5)
        for name, weight in weights.items()
    }


def preemption_candidates(
    evaluator: PodEvaluator, pod: Any, victims: Mapping[str, wire.Victims]
) -> list[str]:
    """Return the nodes of a preempt request where evicting pods may help.

    :raises WireError: the pod cannot be read
    """
    verdict = evaluator.filter(pod, Nodes(list(victims)))
    return [node for node in victims if node not in verdict.never]
