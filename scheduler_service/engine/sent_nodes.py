"""Tables of nodes that the store lacks, made of their objects.

:class:`SentNodes` belongs to the threads that hold the evaluator's lock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from scheduler_service.columns import HostTable, build_table
from scheduler_service.extender import reading, wire
from scheduler_service.model import Aggregate, Host

_MAX_REASON_LENGTH = 1000
_MAX_CACHED_NODES = 20_000
_UNKNOWN = (
    'node {} is not known here: import it with scheduler-manage inventory '
    'import --from-nodes, or set [kubernetes] enabled to have nodes followed, '
    'or [extender] unknown_nodes to let it pass'
)


class UnknownNodes(NamedTuple):
    """What becomes of nodes of which only the name was sent.

    :ivar read: gives what an API server says of a node that the store lacks,
        as :func:`reading.node_host` does; None: nothing
    :ivar passing: whether a node that nobody knows passes
    """

    read: Callable[[str], tuple[Host, str | None] | None] = lambda _: None
    passing: bool = False


class SentNodes:
    """Makes tables, and remembers the nodes that it has read.

    :param domain: of the labels, annotations and resources that are ours
    """

    def __init__(self, domain: str, unknown: UnknownNodes) -> None:
        self._domain = domain
        self._unknown = unknown
        # Digest of a node's JSON -> the host and zone read from it.
        self._cached: dict[bytes, tuple[Host, str | None]] = {}

    def table_of(
        self, names: Sequence[str], document: Callable[[str], Any] | None
    ) -> tuple[HostTable, list[str], dict[str, str]]:
        """Return a table, the names of its rows, and node -> reason.

        Reasons are of nodes that are not in the table and do not pass.

        :param document: as in :class:`engine.pods.Nodes`
        """
        hosts: list[tuple[int, Host]] = []
        zones: dict[str, list[str]] = {}
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
            host, zone = found
            hosts.append((len(hosts), host))
            listed.append(name)
            if zone:
                zones.setdefault(zone, []).append(host.host)
        aggregates = [
            Aggregate(
                id=number, hosts=members, metadata={'availability_zone': zone}
            )
            for number, (zone, members) in enumerate(zones.items())
        ]
        return build_table(hosts, aggregates), listed, unread

    def _found(
        self, name: str, document: Callable[[str], Any] | None
    ) -> tuple[Host, str | None] | None:
        """Return a node as (host, zone); None: nothing but its name is known.

        What was read from JSON is cached by its digest: a kube-scheduler
        sends each node twice for each pod.

        :raises WireError: it cannot be read
        """
        if document is None:
            return self._unknown.read(name)
        node = document(name)
        if not isinstance(node, msgspec.Raw):
            return reading.node_host(node, self._domain)
        key = hashlib.blake2b(node, digest_size=16).digest()
        cached = self._cached.get(key)
        if cached is None:
            if len(self._cached) >= _MAX_CACHED_NODES:
                self._cached.clear()
            parsed = msgspec.json.decode(node)
            cached = reading.node_host(parsed, self._domain)
            self._cached[key] = cached
        return cached
