"""Tables of nodes that the store lacks, made of their objects.

:class:`SentNodes` belongs to the threads that hold the evaluator's lock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import msgspec

from scheduler_service import extender_wire as wire
from scheduler_service.columns import HostTable, build_table
from scheduler_service.kube.node_reader import (
    NodeHost,
    NodeReader,
    aggregates_of,
)
from scheduler_service.kube.sized_cache import SizedCache

_MAX_REASON_LENGTH = 1000
_MAX_CACHED_NODES = 20_000
# Bytes of their JSON: of 20,000 nodes of the usual size.
_MAX_CACHED_SIZE = 256 * 2**20
# Nodes with more classes than a cluster has are not worth caching.
_MAX_CACHED_CLASSES = 100
# Of the columns of a table: 100,000 nodes with 20 classes, 112 MB.
_MAX_CELLS = 2_000_000
# The same for all nodes: a kube-scheduler's event counts equal reasons.
_UNKNOWN = (
    'the node is not known here: import it with scheduler-manage inventory '
    'import --from-nodes, or set [kubernetes] enabled to have nodes followed'
)


class UnknownNodes(NamedTuple):
    """What becomes of nodes that the store lacks.

    :ivar reader: makes hosts of their objects
    :ivar find: gives what an API server says of a node of which only the name
        was sent; None: nothing
    :ivar are_known: whether it is known which nodes there are; until then
        nothing is said of any
    """

    reader: NodeReader
    find: Callable[[str], NodeHost | None] = lambda _: None
    are_known: Callable[[], bool] = lambda: True


class SentNodes:
    """Makes tables, and remembers the nodes that it has read."""

    def __init__(self, unknown: UnknownNodes) -> None:
        self._unknown = unknown
        # Digest of a node's JSON -> what was read from it.
        self._cached = SizedCache[bytes, NodeHost](
            _MAX_CACHED_NODES, _MAX_CACHED_SIZE
        )

    def table_of(
        self,
        names: Sequence[str],
        document: Callable[[str], Any] | None,
        asked: Collection[str],
    ) -> tuple[HostTable, list[str], dict[str, str]]:
        """Return a table, the names of its rows, and node -> reason.

        Reasons are of nodes that are not in the table and do not pass.

        :param document: as in :class:`engine.pods.Nodes`
        :param asked: resource classes of the pod; the table has them alone
            where nodes offer more classes than those of a cluster do
        """
        nodes: list[NodeHost] = []
        listed: list[str] = []
        unread: dict[str, str] = {}
        for name in names:
            try:
                found = self._found(name, document)
            except wire.WireError as fault:
                reason = f'the node cannot be read: {fault}'
                unread[name] = reason[:_MAX_REASON_LENGTH].replace(
                    '%', ' percent'
                )
                continue
            if found is None:
                unread[name] = _UNKNOWN
                continue
            nodes.append(found)
            listed.append(name)
        hosts = [(row, one.host) for row, one in enumerate(nodes)]
        offered = {name for one in nodes for name in one.host.resources}
        table = build_table(
            hosts,
            aggregates_of(nodes),
            classes=asked if len(offered) * len(nodes) > _MAX_CELLS else None,
        )
        return table, listed, unread

    def _found(
        self, name: str, document: Callable[[str], Any] | None
    ) -> NodeHost | None:
        """Return a node; None: nothing but its name is known.

        What was read from JSON is cached by its digest: a kube-scheduler
        sends each node twice for each pod.

        :raises WireError: it cannot be read
        """
        if document is None:
            return self._unknown.find(name)
        node = document(name)
        if not isinstance(node, msgspec.Raw):
            return self._unknown.reader.read(node)
        key = hashlib.blake2b(node, digest_size=16).digest()
        cached = self._cached.get(key)
        if cached is None:
            cached = self._unknown.reader.read(wire.decode(node))
            if len(cached.host.resources) <= _MAX_CACHED_CLASSES:
                self._cached.put(key, cached, len(memoryview(node)))
        return cached
