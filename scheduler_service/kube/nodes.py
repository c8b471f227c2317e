"""Keeps the nodes of a cluster: in memory, and as hosts of the store.

:class:`NodeSink` is told of nodes by the thread that follows them, and asked
by those that evaluate pods. :class:`HostKeeper` owns the thread that writes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

import msgspec

from scheduler_service import errors
from scheduler_service import extender_wire as wire
from scheduler_service.kube.hosts import HostWriter
from scheduler_service.kube.node_reader import NodeHost, NodeReader
from scheduler_service.store.records.leases import LeaseLost

LOG = logging.getLogger(__name__)
# Changes that come together are written together.
_SETTLE_S = 0.1
_TURN_S = 1.0


def _nobody_needs_to_know() -> None:
    """Do nothing."""


class NodeSink:
    """The nodes that there are, as they were seen last.

    :ivar on_change: called after each change, by the follower's thread
    :ivar complete: whether all nodes were listed at least once
    """

    def __init__(self, reader: NodeReader) -> None:
        self._reader = reader
        self._nodes: dict[str, NodeHost] = {}
        self.on_change: Callable[[], None] = _nobody_needs_to_know
        self.complete = False

    def replace(self, objects: Sequence[msgspec.Raw]) -> None:
        """Take these for all nodes."""
        found: dict[str, NodeHost] = {}
        for one in objects:
            try:
                node = wire.decode(one)
                found[wire.name_of(node)] = self._reader.read(node)
            except wire.WireError as fault:
                LOG.warning('A node is left out: %s', fault)
        self._nodes = found
        self.complete = True
        self.on_change()

    def put(self, one: msgspec.Raw) -> None:
        """Take a node that is new or changed.

        :raises WireError: it cannot be read
        """
        node = wire.decode(one)
        name, found = wire.name_of(node), self._reader.read(node)
        if self._nodes.get(name) != found:
            self._nodes[name] = found
            self.on_change()

    def remove(self, one: msgspec.Raw) -> None:
        """Forget a node."""
        if self._nodes.pop(wire.name_of(wire.decode(one)), None) is not None:
            self.on_change()

    def set_lost(self, lost: bool) -> None:
        """Keep what is known."""

    def find(self, name: str) -> NodeHost | None:
        """Return a node by its name; None: there is no such."""
        return self._nodes.get(name)

    def all(self) -> Mapping[str, NodeHost]:
        """Return all nodes by name, at one moment."""
        return dict(self._nodes)


class HostKeeper:
    """A thread that writes nodes into the store as hosts.

    Of the daemons that share a store the one that has the lease writes.
    """

    def __init__(self, nodes: NodeSink, writer: HostWriter) -> None:
        self._nodes = nodes
        self._writer = writer
        self._changed = threading.Event()
        self._stopping = threading.Event()
        nodes.on_change = self._changed.set
        self._thread = threading.Thread(
            target=self._run, name='kube-hosts', daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """End the thread, and let another daemon go on at once.

        :param timeout: seconds to wait for it
        """
        self._stopping.set()
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._turn()
            except LeaseLost:
                LOG.debug('Another daemon keeps the hosts')
            except errors.StoreUnavailable:
                # The engine's thread logs that the database is unreachable.
                self._writer.forget()
            except Exception:
                LOG.exception('Nodes could not be kept as hosts')
                self._writer.forget()
            self._changed.wait(_TURN_S)
            self._stopping.wait(_SETTLE_S)
        self._writer.give_up()

    def _turn(self) -> None:
        self._changed.clear()
        if self._nodes.complete and self._writer.leads():
            self._writer.write(self._nodes.all())
