"""Keeps the nodes of a cluster: in memory, and as hosts of the store.

The thread that follows nodes writes to a :class:`NodeSink`, and threads that
evaluate nodes read it. :class:`HostKeeper` owns the thread that writes nodes
into the store as hosts, and their labels as aggregates. Hosts and aggregates
that were not made of nodes stay as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from scheduler_service import errors
from scheduler_service import extender_wire as wire
from scheduler_service.kube import node_reader
from scheduler_service.kube.node_reader import NodeHost, NodeReader
from scheduler_service.kube.pod_book import PodBook
from scheduler_service.model import Host, HostReport
from scheduler_service.store.connection import Store, in_chunks
from scheduler_service.store.reading import loading
from scheduler_service.store.records.audit import Finding
from scheduler_service.store.records.leases import Lease, LeaseLost
from scheduler_service.store.writing import aggregates as aggregate_rows
from scheduler_service.store.writing import hosts as host_rows
from scheduler_service.worker import OnEnd, Worker

LOG = logging.getLogger(__name__)
# Changes that come together are written together.
_SETTLE_S = 0.1
_TURN_S = 1.0
_LEASE = 'kubernetes'
_HOSTS_AT_ONCE = 500
# Fields that a node does not have: use, and fields that follow from the name.
_NOT_REPORTED = frozenset(
    ('host', 'hypervisor_hostname', 'uuid', 'vcpus_used', 'memory_mb_used',
     'local_gb_used', 'num_instances')
)  # fmt: skip
_STATUS = ('status', 'disabled_reason')


class NodeSink:
    """The nodes of the cluster, as they were followed last.

    :ivar on_change: called after each change, by the follower's thread
    :ivar complete: whether all nodes were listed at least once
    """

    def __init__(self, reader: NodeReader) -> None:
        self._reader = reader
        self._nodes: dict[str, NodeHost] = {}
        self.on_change: Callable[[], None] = lambda: None
        self.complete = False

    def replace(self, objects: Sequence[msgspec.Raw]) -> None:
        nodes: dict[str, NodeHost] = {}
        for text in objects:
            try:
                node = wire.decode(text)
                nodes[wire.name_of(node)] = self._reader.read(node)
            except wire.WireError as fault:
                LOG.warning('A node is left out: %s', fault)
        self._nodes = nodes
        if not self.complete:
            LOG.info('%d nodes of the cluster are loaded', len(nodes))
        self.complete = True
        self.on_change()

    def put(self, text: msgspec.Raw) -> None:
        """Add or replace a node.

        :raises WireError: the node is invalid
        """
        node = wire.decode(text)
        name, host = wire.name_of(node), self._reader.read(node)
        if self._nodes.get(name) != host:
            self._nodes[name] = host
            self.on_change()

    def remove(self, text: msgspec.Raw) -> None:
        if self._nodes.pop(wire.name_of(wire.decode(text)), None) is not None:
            self.on_change()

    def set_lost(self, lost: bool) -> None:
        """Keep the nodes."""

    def find(self, name: str) -> NodeHost | None:
        """Return a node by its name; None: there is none."""
        return self._nodes.get(name)

    def all(self) -> Mapping[str, NodeHost]:
        """Return all nodes by name, at one moment."""
        return dict(self._nodes)


class HostKeeper(Worker):
    """A thread that writes nodes into the store as hosts.

    Of the daemons that share a store, the holder of a lease writes. Methods
    raise StoreUnavailable where the database does not answer.

    :param holder: this daemon's unique name
    :param book: what pods take of the hosts, which is written with them
    """

    def __init__(
        self,
        store: Store,
        holder: str,
        nodes: NodeSink,
        book: PodBook | None = None,
        on_end: OnEnd | None = None,
    ) -> None:
        super().__init__('kube-hosts', on_end)
        self._nodes, self._book = nodes, book
        nodes.on_change = self.wake
        if book is not None:
            book.on_change = self.wake
        self._store = store
        self._lease = Lease(store, _LEASE, holder)
        self._leading = False
        # The nodes as last written; None: the store has to be read first.
        self._written: dict[str, NodeHost] | None = None
        self._foreign: set[str] = set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._nodes.complete and self.leads():
                    self.write(self._nodes.all())
            except LeaseLost:
                LOG.debug('Another daemon keeps the hosts')
                self.forget()
            except errors.StoreUnavailable:
                # The engine's thread logs that the database is unreachable.
                self.forget()
            except Exception:
                LOG.exception('Nodes could not be kept as hosts')
                self.forget()
            self._pause(_TURN_S)
            self._stopping.wait(_SETTLE_S if self._leading else _TURN_S)
        self._lease.give_up()

    def leads(self) -> bool:
        """Whether this daemon holds the lease, and so writes."""
        if self._leading and self._lease.is_fresh():
            return True
        leading = self._lease.take()
        if leading != self._leading:
            LOG.info(
                'Nodes are kept as hosts by %s daemon',
                'this' if leading else 'another',
            )
            self.forget()
        self._leading = leading
        return leading

    def forget(self) -> None:
        """Compare everything anew: another daemon may have written."""
        self._written = None
        if self._book is not None:
            self._book.forget()

    def write(self, nodes: Mapping[str, NodeHost]) -> None:
        """Make the nodes of the store equal to these.

        :raises LeaseLost: another daemon writes now
        """
        stored = None
        if self._written != nodes:
            stored = self._write_hosts(nodes)
        if self._book is not None:
            # Pods on a node that is gone hold nothing of its host any more.
            self._book.write(self._lease, self._kept(nodes))
        if stored is not None:
            self._remove(stored, nodes)
            self._write_aggregates(nodes)
            self._written = dict(nodes)

    def _kept(self, nodes: Mapping[str, NodeHost]) -> dict[str, NodeHost]:
        foreign = self._foreign
        return {n: node for n, node in nodes.items() if n not in foreign}

    def compare(self) -> list[Finding]:
        """Return where claims are not those of the pods that are seen."""
        assert self._book is not None
        self._stored()
        return self._book.compare(self._kept(self._nodes.all()))

    def _write_hosts(
        self, nodes: Mapping[str, NodeHost]
    ) -> dict[str, tuple[int, Host]]:
        """Write nodes that differ; return the nodes that were stored."""
        stored = self._stored()
        before = self._written
        changed = [
            node
            for name, node in nodes.items()
            if name not in self._foreign
            and (before is None or before.get(name) != node)
        ]
        reports = [_report(node.host, stored) for node in changed]
        for part in in_chunks(reports, _HOSTS_AT_ONCE):
            self._lease.keep()
            self._store.write(partial(host_rows.report, reports=part))
        return stored

    def _stored(self) -> dict[str, tuple[int, Host]]:
        with self._store.reading() as conn:
            hosts = loading.hosts(conn, reported=True)
        foreign = {
            host.host
            for host in hosts.values()
            if not node_reader.is_node(host)
        }
        if foreign != self._foreign:
            self._foreign = foreign
            self._written = None
        return {
            host.host: (store_id, host)
            for store_id, host in hosts.items()
            if node_reader.is_node(host)
        }

    def _remove(
        self,
        stored: Mapping[str, tuple[int, Host]],
        nodes: Mapping[str, NodeHost],
    ) -> None:
        named = {node.host.host for node in nodes.values()}
        for name, (store_id, host) in stored.items():
            if name in named:
                continue
            self._lease.keep()
            try:
                self._store.write(partial(host_rows.remove, ids=[store_id]))
            except errors.Conflict as error:
                LOG.warning(
                    'A deleted node is marked down, not removed: %s', error
                )
                down = HostReport(
                    host.host, host.hypervisor_hostname, {'state': 'down'}
                )
                self._store.write(partial(host_rows.report, reports=[down]))

    def _write_aggregates(self, nodes: Mapping[str, NodeHost]) -> None:
        self._lease.keep()
        self._store.write(
            partial(
                aggregate_rows.replace,
                aggregates=node_reader.aggregates_of(nodes.values()),
                is_managed=node_reader.is_of_nodes,
            )
        )


def _report(host: Host, stored: Mapping[str, tuple[int, Host]]) -> HostReport:
    """Return a node as a host report.

    A host that an operator disabled stays disabled.
    """
    changes = {
        name: getattr(host, name)
        for name in Host.__struct_fields__
        if name not in _NOT_REPORTED
    }
    _, before = stored.get(host.host, (0, None))
    if before is not None and before.status == 'disabled':
        reason = before.disabled_reason or ''
        if not reason.startswith(node_reader.PREFIX):
            for name in _STATUS:
                del changes[name]
    return HostReport(host.host, host.hypervisor_hostname, changes)
