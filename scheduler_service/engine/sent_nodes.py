"""Tables of nodes that the store lacks, made of their objects.

:class:`SentNodes` belongs to the threads that hold the evaluator's lock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from scheduler_service.columns import HostTable, build_table
from scheduler_service.extender import wire
from scheduler_service.extender.nodes import (
    NodeHost,
    NodeReader,
    aggregates_of,
)

_MAX_REASON_LENGTH = 1000
_MAX_CACHED_NODES = 20_000
_UNKNOWN = (
    'node {} is not known here: import it with scheduler-manage inventory '
    'import --from-nodes, or set [kubernetes] enabled to have nodes followed, '
    'or [extender] unknown_nodes to let it pass'
)


class UnknownNodes(NamedTuple):
    """What becomes of nodes that the store lacks.

    :ivar reader: makes hosts of their objects
    :ivar find: gives what an API server says of a node of which only the name
        was sent; None: nothing
    :ivar passing: whether a node that nobody knows passes
    """

    reader: NodeReader
    find: Callable[[str], NodeHost | None] = lambda _: None
    passing: bool = False


class SentNodes:
    """Makes tables, and remembers the nodes that it has read."""

    def __init__(self, unknown: UnknownNodes) -> None:
        self._unknown = unknown
        # Digest of a node's JSON -> what was read from it.
        self._cached: dict[bytes, NodeHost] = {}

    def table_of(
        self, names: Sequence[str], document: Callable[[str], Any] | None
    ) -> tuple[HostTable, list[str], dict[str, str]]:
        """Return a table, the names of its rows, and node -> reason.

        Reasons are of nodes that are not in the table and do not pass.

        :param document: as in :class:`engine.pods.Nodes`
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
                if not self._unknown.passing:
                    unread[name] = _UNKNOWN.format(name[:100])
                continue
            nodes.append(found)
            listed.append(name)
        hosts = [(row, one.host) for row, one in enumerate(nodes)]
        return build_table(hosts, aggregates_of(nodes)), listed, unread

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
            if len(self._cached) >= _MAX_CACHED_NODES:
                self._cached.clear()
            cached = self._unknown.reader.read(wire.decode(node))
            self._cached[key] = cached
        return cached
