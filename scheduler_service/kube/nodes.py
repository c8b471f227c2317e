"""Keeps the nodes of a cluster: in memory, and as hosts of the store.

The thread that follows nodes writes to a :class:`NodeSink`, and threads that
evaluate nodes read it. :class:`HostKeeper` owns the thread that writes nodes
into the store as hosts, and their labels as aggregates. Hosts and aggregates
that were not made of nodes stay as they are.

A :class:`Follower` follows the objects of one kind at an API server: it
lists, then watches. Each watch resumes at the version where the last one
ended; where the API server no longer has that version, the objects are listed
anew. A :class:`Recounter` only lists: it serves a daemon that binds pods
itself, and has to find those that ended or that another scheduler placed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from scheduler_service import errors
from scheduler_service import extender_wire as wire
from scheduler_service.engine.health import Health
from scheduler_service.extender_wire import WireError
from scheduler_service.kube import node_reader
from scheduler_service.kube.api import (
    ApiLost,
    ApiServer,
    VersionExpired,
    Watch,
)
from scheduler_service.kube.node_reader import NodeHost, NodeReader
from scheduler_service.kube.pod_book import PodBook
from scheduler_service.kube.pod_use import SELECTOR, PodSink
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
_RESUME_S = 0.05
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0


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


class Follower(Worker):
    """A thread that follows the objects of one kind by a list and watches.

    :param selector: of their fields
    :param name: of the objects in texts and metrics, where not all of the kind
        are followed
    """

    def __init__(
        self,
        api: ApiServer,
        kind: str,
        selector: str,
        sink: NodeSink | PodSink,
        health: Health,
        name: str = '',
    ) -> None:
        super().__init__(f'kube-{name or kind}', health.thread_ended)
        self._api = api
        self._resource = kind
        self._kind = name or kind
        self._selector = selector
        self._sink = sink
        self._health = health
        self._cause = f'kubernetes {self._kind}'
        # Used from the next watch on.
        self._next: ApiServer | None = None
        # At which the next watch begins; empty: after a list.
        self._version = ''
        self._watch: Watch | None = None

    def wake(self) -> None:
        """End the watch."""
        if self._watch is not None:
            self._watch.close()

    def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        while not self._stopping.is_set():
            try:
                self._follow()
                pause = _FIRST_PAUSE_S
                # A server may end each watch at once.
                self._stopping.wait(_RESUME_S)
                continue
            except VersionExpired:
                self._health.count('kubernetes_relists', self._kind)
                self._version = ''
                self._stopping.wait(_FIRST_PAUSE_S)
                continue
            except ApiLost as fault:
                self._lose(str(fault))
            except Exception as fault:
                LOG.exception('%s cannot be followed', self._kind)
                self._version = ''
                self._lose(str(fault))
            self._stopping.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _lose(self, why: str) -> None:
        if self._stopping.is_set():
            return
        self._health.count('kubernetes_watch_errors', self._kind)
        self._sink.set_lost(True)
        self._health.degrade(
            self._cause,
            f'{self._kind} of the cluster are not followed, the API server '
            f'does not answer: {why[:300]}',
            f'{self._kind.capitalize()} of the cluster are followed again',
        )

    def _followed(self) -> None:
        self._sink.set_lost(False)
        self._health.recover(self._cause)

    def use(self, api: ApiServer) -> None:
        """Follow by another client: from the next watch on, with a new list.

        A watch lasts 30 seconds.
        """
        self._next = api

    def _follow(self) -> None:
        api, self._next = self._next, None
        if api is not None:
            self._api, self._version = api, ''
        if not self._version:
            listed, version = self._api.list(self._resource, self._selector)
            self._sink.replace(listed)
            self._version = version
        watch = self._watch = self._api.watch(
            self._resource, self._version, self._selector
        )
        self._followed()
        if self._stopping.is_set():
            watch.close()
        for event in watch.events():
            if event.type != 'BOOKMARK':
                self._health.count('kubernetes_events', self._kind)
                change = (
                    self._sink.remove
                    if event.type == 'DELETED'
                    else self._sink.put
                )
                try:
                    change(event.object)
                except WireError as fault:
                    LOG.warning(
                        'An object is left out of %s: %s', self._kind, fault
                    )
            self._version = event.version or self._version


class Recounter(Follower):
    """A thread that lists placed pods.

    :param interval: seconds between two lists
    """

    def __init__(
        self, api: ApiServer, interval: float, sink: PodSink, health: Health
    ) -> None:
        super().__init__(api, 'pods', SELECTOR, sink, health)
        self._interval = interval
        self._pods = sink

    def _follow(self) -> None:
        self._pods.begin_listing()
        self._pods.replace(self._api.list('pods', SELECTOR)[0])
        self._followed()
        self._stopping.wait(self._interval)
