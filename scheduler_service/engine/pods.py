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
from scheduler_service.engine.pod_load import Asking, Sent
from scheduler_service.engine.pod_places import PodPlaces
from scheduler_service.engine.table_copies import TableCopier
from scheduler_service.extender import reading, wire
from scheduler_service.filters.base import HostFilter
from scheduler_service.filters.support.capacity import CapacityFilter
from scheduler_service.filters.support.count import CountFilter
from scheduler_service.model import Aggregate, Host, Request
from scheduler_service.pipeline import HostPipeline

_MAX_REASON_LENGTH = 1000
# Reasons are computed for so many nodes that one filter rejects; the others
# get the last of these.
_MAX_REASONS = 200
_MAX_CACHED_NODES = 20_000
_UNKNOWN = (
    'node {} is not known here: import it with scheduler-manage inventory '
    'import --from-nodes, or set [kubernetes] enabled to have nodes followed, '
    'or [extender] unknown_nodes to let it pass'
)
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


class UnknownNodes(NamedTuple):
    """What becomes of nodes of which only the name was sent.

    :ivar read: gives what an API server says of a node that the store lacks,
        as :func:`reading.node_host` does; None: nothing
    :ivar passing: whether a node that nobody knows passes
    """

    read: Callable[[str], tuple[Host, str | None] | None] = lambda _: None
    passing: bool = False


class PodEvaluator:
    """Filters and scores nodes for pods.

    :param snapshot: gives the newest snapshot, None before the first
    :param places: where pods are, and what follows from it
    """

    def __init__(
        self,
        pipeline: HostPipeline,
        snapshot: Callable[[], Snapshot | None],
        places: PodPlaces,
        unknown: UnknownNodes,
    ) -> None:
        self._pipeline = pipeline
        self._snapshot = snapshot
        self._domain = places.domain
        self._places = places
        self._unknown = unknown
        # The pod that was filtered last, with the nodes that passed, until
        # they are scored: where it goes is still to be assumed.
        self._unplaced: tuple[Any, str, Nodes] | None = None
        self._copier = TableCopier()
        # Digest of a node's JSON -> the host and zone read from it.
        self._cached_nodes: dict[bytes, tuple[Host, str | None]] = {}

    def filter(self, pod: Any, nodes: Nodes) -> Verdict:
        """Return which nodes pass, and the reasons of the others.

        A node whose object cannot be read fails alone.

        :raises WireError: the pod cannot be read
        """
        request = reading.pod_request(pod, self._domain)
        failed: dict[str, str] = {}
        never: dict[str, str] = {}
        with self._copier.lock:
            asking = self._places.asking(pod)
            self._place_the_last(asking.uid)
            for table, rows, unread in self._tables(nodes):
                failed.update(unread)
                if rows:
                    self._filter(table, rows, request, failed, never)
                    self._leave_out_full(table, rows, asking, failed, never)
            passed = [
                name
                for name in nodes.names
                if name not in failed and name not in never
            ]
            if self._places.assuming:
                left = Nodes(passed, nodes.document)
                self._unplaced = pod, asking.uid, left
        return Verdict(passed, failed, never)

    def _place_the_last(self, uid: str) -> None:
        """Assume where the pod goes that was filtered and never scored.

        Either one node was left for it, or nobody asks for scores.
        """
        if self._unplaced is None:
            return
        pod, last, nodes = self._unplaced
        self._unplaced = None
        if last != uid and nodes.names and not self._places.use.is_seen(last):
            self.prioritize(pod, nodes)

    def _leave_out_full(
        self,
        table: HostTable,
        rows: Mapping[str, int],
        asking: Asking,
        failed: dict[str, str],
        never: Mapping[str, str],
    ) -> None:
        """Add nodes to *failed* where pods took what is asked."""
        if not asking.usage.classes:
            return
        names = [n for n in rows if n not in failed and n not in never]
        sent = self._sent(table, {name: rows[name] for name in names})
        failed.update(self._places.full(sent, names, asking))

    def _sent(self, table: HostTable, rows: Mapping[str, int]) -> Sent:
        numbers = self._places.use.numbers_of(list(rows))
        at = np.fromiter(rows.values(), np.int64, len(rows))
        return Sent(table, at, numbers)

    def prioritize(self, pod: Any, nodes: Nodes) -> dict[str, int]:
        """Return scores of 0 to 10; 0 for all nodes if they are equal.

        The pod is assumed to go to the best of them.

        :raises WireError: the pod cannot be read
        """
        request = reading.pod_request(pod, self._domain)
        scores = dict.fromkeys(nodes.names, 0)
        weights: list[Any] = []
        parts: list[Sent] = []
        names: list[str] = []
        with self._copier.lock:
            self._unplaced = None
            asking = self._places.asking(pod)
            for table, rows, _ in self._tables(nodes):
                if not rows:
                    continue
                sent = self._sent(table, rows)
                ranking = self._pipeline.weigh_hosts(
                    table, table.mask_of(sent.rows), request
                )
                totals = np.zeros(len(table))
                if ranking is not None:
                    totals[ranking.rows] = ranking.totals
                parts.append(sent)
                names.extend(rows)
                weights.append(totals[sent.rows])
            if names:
                found = self._places.scores(
                    parts, np.concatenate(weights), asking
                )
                scores.update(zip(names, found, strict=True))
                best = names[found.index(max(found))]
                self._places.assume(asking, best)
        return scores

    def claim(self, uid: str, node: str) -> bool:
        """Count a pod on the node that it is about to be bound to.

        :return: whether :meth:`unclaim` is due if it is not bound
        :raises Conflict: pods that were placed meanwhile took the room
        """
        with self._copier.lock:
            for table, rows, _ in self._tables(Nodes([node])):
                if rows:
                    sent = self._sent(table, rows)
                    return self._places.claim(uid, node, sent)
            return self._places.claim(uid, node, None)

    def unclaim(self, uid: str) -> None:
        """Count a pod no more that was not bound."""
        self._places.use.remove(uid)

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
        if others:
            tables.append(self._table_of(others, nodes.document))
        return tables

    def _table_of(
        self, names: Sequence[str], document: Callable[[str], Any] | None
    ) -> tuple[HostTable, dict[str, int], dict[str, str]]:
        hosts: list[tuple[int, Host]] = []
        zones: dict[str, list[str]] = {}
        rows: dict[str, int] = {}
        unread: dict[str, str] = {}
        for name in names:
            try:
                found = self._unknown.read(name)
                if document is not None:
                    found = self._host(document(name))
            except wire.WireError as fault:
                reason = f'the node cannot be read: {fault}'
                unread[name] = reason[:_MAX_REASON_LENGTH].replace(
                    '%', ' percent'
                )
                continue
            if found is None:
                if not self._unknown.passing:
                    unread[name] = _UNKNOWN.format(name[:100])
                continue
            host, zone = found
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


def preemption_candidates(
    evaluator: PodEvaluator, pod: Any, victims: Mapping[str, wire.Victims]
) -> list[str]:
    """Return the nodes of a preempt request where evicting pods may help.

    :raises WireError: the pod cannot be read
    """
    verdict = evaluator.filter(pod, Nodes(list(victims)))
    return [node for node in victims if node not in verdict.never]
