"""Host tables for the nodes of a call, from the store or as sent.

:class:`StoredNodes` and :class:`SentNodes` belong to the thread that holds
the evaluator's lock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from scheduler_service import extender_wire as wire
from scheduler_service.columns import HostTable, build_table
from scheduler_service.columns.table_copies import TableCopy
from scheduler_service.engine.newest_copy import NewestCopy
from scheduler_service.kube.node_reader import (
    NodeHost,
    NodeReader,
    aggregates_of,
)
from scheduler_service.kube.pod_reader import PodRequest, SizedCache
from scheduler_service.pipeline import HostPipeline
from scheduler_service.pipeline.evaluation import Evaluation

_MAX_RESULTS = 1024
_MAX_REASON_LENGTH = 1000
# Of the JSON of a pod or node. Kubernetes stores objects of 1.5 MiB at most,
# and a parsed object may take many times its bytes.
MOST_BYTES = 4 * 1024 * 1024
_MAX_CACHED_NODES = 20_000
# Bytes of JSON: 20,000 nodes of the usual size.
_MAX_CACHED_SIZE = 256 * 2**20
# Values in the columns of a table: 100,000 nodes with 20 classes, 112 MB.
_MAX_CELLS = 2_000_000
_MAX_OFFERED = 10_000
# The same text for all nodes: a kube-scheduler's event counts equal reasons.
_UNKNOWN = (
    'the node is not in the store: import it with scheduler-manage inventory '
    'import --from-nodes, or set [kubernetes] enabled to have nodes followed'
)


def _offered(table: HostTable) -> set[str]:
    """Return the classes of which a host has some."""
    return {
        name
        for name, columns in table.resources.items()
        if (columns.total > 0).any()
    }


class StoredNodes:
    """Caches filter results of stored nodes until their table changes.

    A kube-scheduler calls for one pod after another, and many pods request
    the same.

    :param newest: gives the copies, whose memo is used here alone
    :ivar offered: classes of which a host has some
    """

    def __init__(self, pipeline: HostPipeline, newest: NewestCopy) -> None:
        self._pipeline = pipeline
        self._newest = newest
        self._copy: TableCopy | None = None
        self.offered: set[str] = set()
        # By the key of pods.
        self._results: dict[bytes, Evaluation] = {}

    def use(self, pipeline: HostPipeline) -> None:
        """Evaluate by another pipeline, and drop all results."""
        self._pipeline = pipeline
        self._newest.forget()
        self._copy = None

    def newest(self) -> TableCopy | None:
        """Return a copy of the newest table; None if there is none yet."""
        copy = self._newest.get()
        if copy is not self._copy:
            self._copy, self._results = copy, {}
            self.offered = _offered(copy.table) if copy else set()
        return copy

    def results(self, pod: PodRequest) -> Evaluation:
        """Return the filter results of a pod on the table returned last."""
        assert self._copy is not None
        table, results = self._copy.table, self._results
        result = results.get(pod.key)
        if result is None:
            if len(results) >= _MAX_RESULTS:
                results.clear()
            result = results[pod.key] = self._pipeline.evaluate(
                table, pod.request
            )
        return result


class SentNodes:
    """Makes tables of nodes that are not in the store; caches the nodes.

    :param reader: makes hosts of their objects
    :param find: returns a followed node by its name, where only the name was
        sent; None: not found
    :ivar offered: classes of which a node had some, in this call or before: a
        call may have few of a cluster's nodes
    """

    def __init__(
        self,
        reader: NodeReader,
        find: Callable[[str], NodeHost | None] = lambda _: None,
    ) -> None:
        self._reader = reader
        self.find = find
        self.offered: set[str] = set()
        # Digest of a node's JSON -> the node.
        self._cached = SizedCache[NodeHost](
            _MAX_CACHED_NODES, _MAX_CACHED_SIZE
        )

    def table_of(
        self,
        names: Sequence[str],
        items: Mapping[str, msgspec.Raw] | None,
        classes: Collection[str],
    ) -> tuple[HostTable, list[str], dict[str, str]]:
        """Return a table, the names of its rows, and node -> reason.

        The reasons are of invalid or missing nodes, which have no row.

        :param items: as in :class:`kube.evaluator.Nodes`
        :param classes: that the pod requests; a table with very many classes
            is limited to them
        """
        nodes: dict[str, NodeHost] = {}
        rejected: dict[str, str] = {}
        for name in names:
            try:
                node = self._read(name, items)
            except wire.WireError as fault:
                reason = f'the node cannot be read: {fault}'
                rejected[name] = reason[:_MAX_REASON_LENGTH].replace(
                    '%', ' percent'
                )
                continue
            if node is not None:
                nodes[name] = node
            else:
                rejected[name] = _UNKNOWN
        hosts = [node.host for node in nodes.values()]
        offered = {name for host in hosts for name in host.resources}
        is_large = len(offered) * len(hosts) > _MAX_CELLS
        table = build_table(
            list(enumerate(hosts)),
            aggregates_of(nodes.values()),
            classes=classes if is_large else None,
        )
        if len(self.offered) > _MAX_OFFERED:
            self.offered.clear()
        self.offered |= _offered(table)
        return table, list(nodes), rejected

    def _read(
        self, name: str, items: Mapping[str, msgspec.Raw] | None
    ) -> NodeHost | None:
        """Return a node; None: only its name was sent, and it is not followed.

        A kube-scheduler sends each node twice for each pod.

        :raises WireError: the node is invalid
        """
        if items is None:
            return self.find(name)
        node = items[name]
        size = len(memoryview(node))
        if size > MOST_BYTES:
            raise wire.WireError(f'{size} bytes, at most {MOST_BYTES}')
        key = hashlib.blake2b(node, digest_size=16).digest()
        cached = self._cached.get(key)
        if cached is None:
            cached = self._reader.read(wire.decode(node))
            self._cached.put(key, cached, size)
        return cached
