"""The service as a kube-scheduler's extender: evaluates nodes for a pod.

A node that the store knows is evaluated as it is stored; any other by the
object that was sent. :class:`PodEvaluator` owns copies of the newest host
table and a cache of nodes it has read; any thread may call it.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from scheduler_service.columns import HostTable, build_table
from scheduler_service.columns.dictionary import Floats, Rows
from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.engine.pod_requests import Asked, PodRequests
from scheduler_service.engine.stored_hosts import StoredHosts
from scheduler_service.extender import reading, wire
from scheduler_service.filters.base import HostFilter
from scheduler_service.filters.support.capacity import CapacityFilter
from scheduler_service.filters.support.count import CountFilter
from scheduler_service.model import Aggregate, Host
from scheduler_service.pipeline import HostPipeline
from scheduler_service.pipeline.judgement import Judgement

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


class Nodes:
    """The nodes of one call.

    :ivar names: in the order they were sent
    :ivar document: gives a v1 Node by its name, as ``msgspec.Raw`` or parsed;
        None where only names were sent
    """

    __slots__ = ('_found', 'document', 'names')

    def __init__(
        self,
        names: list[str],
        document: Callable[[str], Any] | None = None,
    ) -> None:
        self.names = names
        self.document = document
        # Names -> rows of a table, and what was found there.
        self._found: tuple[Mapping[str, int], Rows | None] | None = None

    def rows_in(self, rows: Mapping[str, int]) -> Rows | None:
        """Return the rows of the nodes, int64[m].

        None if one is not there, or named twice.

        :param rows: node name -> row of the table
        """
        found = self._found
        if found is not None and found[0] is rows:
            return found[1]
        array = None
        with contextlib.suppress(KeyError):
            array = np.fromiter(
                map(rows.__getitem__, self.names), np.int64, len(self.names)
            )
        if array is not None and not _distinct(array, len(rows)):
            array = None
        self._found = rows, array
        return array


def _distinct(rows: Rows, most: int) -> bool:
    """Whether no row is there twice; all are below *most*."""
    seen = np.zeros(most, np.bool_)
    seen[rows] = True
    return int(np.count_nonzero(seen)) == len(rows)


class Verdict(NamedTuple):
    """The result of a filter call.

    :ivar passed: names of nodes, in the order they were sent
    :ivar failed: node -> reason, for those that may pass later
    :ivar never: node -> reason, for those that evicting pods cannot help
    """

    passed: list[str]
    failed: dict[str, str]
    never: dict[str, str]


class Scores(NamedTuple):
    """The result of a prioritize call.

    :ivar names: of nodes, each once, in the order they were sent
    :ivar values: their scores
    """

    names: list[str]
    values: list[int]


class _Part(NamedTuple):
    """Those nodes of a call that are in one table.

    :ivar rows: int64[m], of the names
    """

    judgement: Judgement
    table: HostTable
    names: Sequence[str]
    rows: Rows


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
        self._domain = domain
        self._lock = threading.Lock()
        self._stored = StoredHosts(pipeline, snapshot)
        self._requests = PodRequests(domain)
        # Digest of a node's JSON -> the host and zone read from it.
        self._cached_nodes: dict[bytes, tuple[Host, str | None]] = {}

    def use(self, pipeline: HostPipeline) -> None:
        """Evaluate by another pipeline, from the next call on."""
        with self._lock:
            self._pipeline = pipeline
            self._stored.use(pipeline)

    def filter(self, pod: Any, nodes: Nodes) -> Verdict:
        """Return which nodes pass, and the reasons of the others.

        A node whose object cannot be read fails alone.

        :raises WireError: the pod cannot be read
        """
        failed: dict[str, str] = {}
        never: dict[str, str] = {}
        with self._lock:
            parts, unread = self._parts(self._requests.of(pod), nodes)
            failed.update(unread)
            for part in parts:
                self._filter(part, failed, never)
        passed = nodes.names
        if failed or never:
            passed = [
                name
                for name in passed
                if name not in failed and name not in never
            ]
        return Verdict(passed, failed, never)

    def prioritize(self, pod: Any, nodes: Nodes) -> Scores:
        """Return scores of 0 to 10, the best node's 10.

        :raises WireError: the pod cannot be read
        """
        with self._lock:
            parts, _ = self._parts(self._requests.of(pod), nodes)
            if len(parts) == 1 and parts[0].names is nodes.names:
                part = parts[0]
                return Scores(
                    nodes.names, _scores(part.judgement.totals(part.rows))
                )
            weights: dict[str, float] = dict.fromkeys(nodes.names, 0.0)
            for part in parts:
                totals = part.judgement.totals(part.rows).tolist()
                weights.update(zip(part.names, totals, strict=True))
        values = np.array(list(weights.values()), np.float64)
        return Scores(list(weights), _scores(values))

    def _parts(
        self, asked: Asked, nodes: Nodes
    ) -> tuple[list[_Part], dict[str, str]]:
        """Return the nodes by table, and name -> reason of the others.

        Stored nodes are in a copy of the newest table, the others in a table
        made of their documents.
        """
        others: list[str] = nodes.names
        parts: list[_Part] = []
        copy = self._stored.newest()
        if copy is not None:
            names, rows = nodes.names, nodes.rows_in(copy.rows)
            if rows is None:
                stored = {
                    name: copy.rows[name]
                    for name in nodes.names
                    if name in copy.rows
                }
                others = [name for name in nodes.names if name not in stored]
                names = list(stored)
                rows = np.array(list(stored.values()), np.int64)
            else:
                others = []
            if len(rows):
                judgement = self._stored.judgement(asked)
                parts.append(_Part(judgement, copy.table, names, rows))
        if not others:
            return parts, {}
        if nodes.document is None:
            return parts, {
                name: f'node {name[:100]} is not known here' for name in others
            }
        table, rows_of, unread = self._table_of(others, nodes.document)
        if rows_of:
            judgement = self._pipeline.judge(table, asked.request)
            rows = np.array(list(rows_of.values()), np.int64)
            parts.append(_Part(judgement, table, list(rows_of), rows))
        return parts, unread

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
        self, part: _Part, failed: dict[str, str], never: dict[str, str]
    ) -> None:
        """Add rejected nodes to *failed* or *never*, by the first filter."""
        sent = part.rows
        if part.judgement.passing()[sent].all():
            return
        passing = np.ones(len(sent), np.bool_)
        for host_filter, mask in part.judgement.results():
            rejected = passing & ~mask[sent]
            if not rejected.any():
                continue
            passing &= ~rejected
            into = failed if _may_pass_later(host_filter) else never
            text = host_filter.name
            for number, index in enumerate(np.flatnonzero(rejected).tolist()):
                if number < _MAX_REASONS:
                    text = self._reason(part, host_filter, int(sent[index]))
                into[part.names[index]] = text

    def _reason(self, part: _Part, host_filter: HostFilter, row: int) -> str:
        known = part.judgement.reasons
        text = known.get((host_filter.name, row))
        if text is None:
            reason = host_filter.reason(
                part.table,
                row,
                part.judgement.request,
                self._pipeline.settings,
            )
            text = f'{host_filter.name}: {reason}'[:_MAX_REASON_LENGTH]
            text = text.replace('%', ' percent')
            known[host_filter.name, row] = text
        return text


def _may_pass_later(host_filter: HostFilter) -> bool:
    """Whether a filter looks at load, and evicting pods may help."""
    return (
        isinstance(host_filter, CapacityFilter | CountFilter)
        or host_filter.name in _MAY_PASS_LATER
    )


def _scores(weights: Floats) -> list[int]:
    """Return weights as scores of 0 to 10, rounded half up; 0 if all equal."""
    if not len(weights):
        return []
    low = weights.min()
    span = weights.max() - low
    if span <= 0.0:
        return [0] * len(weights)
    scores = (weights - low) / span * _MAX_SCORE + 0.5
    found: list[int] = scores.astype(np.int64).tolist()
    return found


def preemption_candidates(
    evaluator: PodEvaluator, pod: Any, victims: Mapping[str, wire.Victims]
) -> list[str]:
    """Return the nodes of a preempt request where evicting pods may help.

    :raises WireError: the pod cannot be read
    """
    verdict = evaluator.filter(pod, Nodes(list(victims)))
    return [node for node in victims if node not in verdict.never]
