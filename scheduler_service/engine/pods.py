"""Us as an extender: what our filters and weighers make of nodes for a pod.

A node that the store knows is judged by the store; any other by the object
that was sent.
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
from scheduler_service.filters.hosts.base import HostFilter
from scheduler_service.filters.support.capacity import CapacityFilter
from scheduler_service.filters.support.count import CountFilter
from scheduler_service.model import Aggregate, Host, Request
from scheduler_service.pipeline import HostPipeline

_BEST = 10
_REASON = 1000
# Reasons are worked out for so many nodes of a filter; the rest are alike.
_WORDED = 200
_REMEMBERED = 20_000
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
    :ivar document: of a node by its name, as it came or read; None in the
        form of names
    """

    names: Sequence[str]
    document: Callable[[str], Any] | None = None


class Verdict(NamedTuple):
    """What came of a filter call.

    :ivar failed: node -> why, for those that may pass later
    :ivar never: node -> why, for those that no eviction could help
    """

    passed: list[str]
    failed: dict[str, str]
    never: dict[str, str]


class PodEvaluator:
    """Judges nodes for pods; any thread may ask.

    :param snapshot: gives the newest snapshot, None before the first
    :param domain: of labels, annotations and resources that are ours
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
        self._freezer = TableCopier()
        self._read: dict[bytes, tuple[Host, str | None]] = {}

    def filter(self, pod: Any, nodes: Nodes) -> Verdict:
        """Say which nodes pass, and why the others do not.

        :raises WireError: pod or node cannot be read
        """
        request = reading.pod_request(pod, self._domain)
        failed: dict[str, str] = {}
        never: dict[str, str] = {}
        out: set[str] = set()
        with self._freezer.lock:
            for table, rows, strange in self._tables(nodes):
                for name in strange:
                    failed[name] = f'node {name[:100]} is not known here'
                if rows:
                    self._judge(table, rows, request, failed, never)
        out.update(failed, never)
        passed = [name for name in nodes.names if name not in out]
        return Verdict(passed, failed, never)

    def prioritize(self, pod: Any, nodes: Nodes) -> dict[str, int]:
        """Return scores of 0 to 10, the best node's 10.

        :raises WireError: pod or node cannot be read
        """
        request = reading.pod_request(pod, self._domain)
        weights: dict[str, float] = dict.fromkeys(nodes.names, 0.0)
        with self._freezer.lock:
            for table, rows, _ in self._tables(nodes):
                if not rows:
                    continue
                at = np.fromiter(rows.values(), np.int64, len(rows))
                ranking = self._pipeline.weigh_hosts(
                    table, table.mask_of(at), request
                )
                if ranking is None:
                    continue
                totals = np.zeros(len(table))
                totals[ranking.rows] = ranking.totals
                weights.update(zip(rows, totals[at].tolist(), strict=True))
        return _scaled(weights)

    def _tables(
        self, nodes: Nodes
    ) -> list[tuple[HostTable, dict[str, int], list[str]]]:
        """Return (table, name -> row, names not known) of the nodes."""
        snapshot = self._snapshot()
        known: dict[str, int] = {}
        found: list[tuple[HostTable, dict[str, int], list[str]]] = []
        if snapshot is not None:
            frozen = self._freezer.freeze(snapshot.hosts)
            rows = frozen.rows
            known = {one: rows[one] for one in nodes.names if one in rows}
            found.append((frozen.table, known, []))
        rest = [one for one in nodes.names if one not in known]
        if rest and nodes.document is not None:
            table = self._table_of(rest, nodes.document)
            found.append((table, {n: at for at, n in enumerate(rest)}, []))
        elif rest:
            none = build_table([])
            found.append((none, {}, rest))
        return found

    def _table_of(
        self, names: Sequence[str], document: Callable[[str], Any]
    ) -> HostTable:
        hosts: list[tuple[int, Host]] = []
        zones: dict[str, list[str]] = {}
        for at, name in enumerate(names):
            host, zone = self._host(document(name))
            hosts.append((at, host))
            if zone:
                zones.setdefault(zone, []).append(host.host)
        aggregates = [
            Aggregate(
                id=at, hosts=members, metadata={'availability_zone': zone}
            )
            for at, (zone, members) in enumerate(zones.items())
        ]
        return build_table(hosts, aggregates)

    def _host(self, given: Any) -> tuple[Host, str | None]:
        """Return a node as a host; the same text again is not read again.

        Nodes come twice for each pod, and with the next pod once more.
        """
        if not isinstance(given, msgspec.Raw):
            return reading.node_host(given, self._domain)
        key = hashlib.blake2b(given, digest_size=16).digest()
        found = self._read.get(key)
        if found is None:
            if len(self._read) >= _REMEMBERED:
                self._read.clear()
            document = msgspec.json.decode(given)
            found = reading.node_host(document, self._domain)
            self._read[key] = found
        return found

    def _judge(
        self,
        table: HostTable,
        rows: Mapping[str, int],
        request: Request,
        failed: dict[str, str],
        never: dict[str, str],
    ) -> None:
        """Put the nodes that fail where they belong, by the first filter."""
        names = list(rows)
        at = np.fromiter(rows.values(), np.int64, len(rows))
        open_ = np.ones(len(at), np.bool_)
        for one, mask in self._pipeline.filter_results(table, request):
            fails = open_ & ~mask[at]
            if not fails.any():
                continue
            open_ &= ~fails
            into = failed if _may_pass_later(one) else never
            text = one.name
            for turn, index in enumerate(np.flatnonzero(fails).tolist()):
                if turn < _WORDED:
                    why = one.reason(
                        table,
                        int(at[index]),
                        request,
                        self._pipeline.settings,
                    )
                    text = f'{one.name}: {why}'[:_REASON]
                into[names[index]] = text.replace('%', ' percent')


def _may_pass_later(one: HostFilter) -> bool:
    """Whether it looks at load, which changes, and not at what stays."""
    return (
        isinstance(one, CapacityFilter | CountFilter)
        or one.name in _MAY_PASS_LATER
    )


def _scaled(weights: Mapping[str, float]) -> dict[str, int]:
    """Return weights as scores, rounded half up; 0 where all are equal."""
    low = min(weights.values(), default=0.0)
    span = max(weights.values(), default=0.0) - low
    if span <= 0.0:
        return dict.fromkeys(weights, 0)
    return {
        name: int((weight - low) / span * _BEST + 0.5)
        for name, weight in weights.items()
    }


def preemption_candidates(
    judge: PodEvaluator, pod: Any, victims: Mapping[str, wire.Victims]
) -> list[str]:
    """Return the nodes of a preempt request where evicting may help.

    :raises WireError: the pod cannot be read
    """
    verdict = judge.filter(pod, Nodes(list(victims)))
    return [node for node in victims if node not in verdict.never]
