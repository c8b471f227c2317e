"""Writes nodes into the store as hosts, and their labels as aggregates.

A :class:`HostWriter` belongs to the thread of its keeper. Hosts and aggregates
that are not made of nodes are left as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from scheduler_service import errors
from scheduler_service.kube import node_reader as reading
from scheduler_service.kube.node_reader import NodeHost
from scheduler_service.model import Host, HostReport
from scheduler_service.store.connection import Store, Writer, in_chunks
from scheduler_service.store.reading import loading
from scheduler_service.store.records.leases import Lease
from scheduler_service.store.writing import aggregates as aggregate_rows
from scheduler_service.store.writing import hosts as host_rows

LOG = logging.getLogger(__name__)
_LEASE = 'kubernetes'
_HOSTS_AT_ONCE = 500
# What a node says nothing about: use, and what follows from the name.
_NOT_SAID = frozenset(
    ('host', 'hypervisor_hostname', 'uuid', 'vcpus_used', 'memory_mb_used',
     'local_gb_used', 'num_instances')
)  # fmt: skip
_STATUS = ('status', 'disabled_reason')


class HostWriter:
    """Writes what changed since it wrote last.

    :param holder: this daemon's name, which no other has
    """

    def __init__(self, store: Store, holder: str) -> None:
        self._store = store
        self._lease = Lease(store, _LEASE, holder)
        self._leading = False
        # What was written; None: it has to be read first what there is.
        self._written: dict[str, NodeHost] | None = None
        self._foreign: set[str] = set()

    def leads(self) -> bool:
        """Whether this daemon is the one that writes.

        :raises StoreUnavailable: the database does not answer
        """
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
        """Compare everything anew: somebody else may have written."""
        self._written = None

    def give_up(self) -> None:
        """Let another daemon write at once."""
        if self._leading:
            try:
                self._lease.give_up()
            except errors.StoreUnavailable:
                LOG.debug('The lease of the hosts expires by itself')

    def write(self, wanted: Mapping[str, NodeHost]) -> None:
        """Make the store have these nodes.

        :raises StoreUnavailable: the database does not answer
        :raises LeaseLost: another daemon writes now
        """
        if self._written == wanted:
            return
        stored = self._stored()
        before = self._written
        changed = [
            one
            for name, one in wanted.items()
            if name not in self._foreign
            and (before is None or before.get(name) != one)
        ]
        reports = [_report(one.host, stored) for one in changed]
        for part in in_chunks(reports, _HOSTS_AT_ONCE):
            self._lease.keep()
            self._store.write(_writing(part))
        self._remove(stored, wanted)
        self._write_aggregates(wanted)
        self._written = dict(wanted)

    def _stored(self) -> dict[str, tuple[int, Host]]:
        """Return the stored nodes by name, with their ids."""
        with self._store.reading() as conn:
            hosts = loading.hosts(conn, reported=True)
        foreign = {
            host.host for host in hosts.values() if not reading.is_node(host)
        }
        if foreign != self._foreign:
            self._foreign = foreign
            self._written = None
        return {
            host.host: (store_id, host)
            for store_id, host in hosts.items()
            if reading.is_node(host)
        }

    def _remove(
        self,
        stored: Mapping[str, tuple[int, Host]],
        wanted: Mapping[str, NodeHost],
    ) -> None:
        named = {one.host.host for one in wanted.values()}
        for name, (store_id, host) in stored.items():
            if name in named:
                continue
            self._lease.keep()
            try:
                self._store.write(_removing(store_id))
            except errors.Conflict as error:
                LOG.warning('A node that is gone is down instead: %s', error)
                down = HostReport(
                    host.host, host.hypervisor_hostname, {'state': 'down'}
                )
                self._store.write(_writing([down]))

    def _write_aggregates(self, wanted: Mapping[str, NodeHost]) -> None:
        aggregates = reading.aggregates_of(wanted.values())

        def write(writer: Writer) -> None:
            named = {one.id for one in aggregates}
            gone = [
                one.id
                for one in loading.aggregates(writer.conn)
                if reading.is_of_nodes(one) and one.id not in named
            ]
            if gone:
                aggregate_rows.remove(writer, gone)
            aggregate_rows.put(writer, aggregates)

        self._lease.keep()
        self._store.write(write)


def _writing(reports: Sequence[HostReport]) -> Any:
    return lambda writer: host_rows.report(writer, reports)


def _removing(store_id: int) -> Any:
    return lambda writer: host_rows.remove(writer, [store_id])


def _report(host: Host, stored: Mapping[str, tuple[int, Host]]) -> HostReport:
    """Return what a node says as a report.

    What an operator disabled stays disabled.
    """
    changes = {
        name: getattr(host, name)
        for name in Host.__struct_fields__
        if name not in _NOT_SAID
    }
    known = stored.get(host.host)
    if known is not None and known[1].status == 'disabled':
        reason = known[1].disabled_reason or ''
        if not reason.startswith(reading.PREFIX):
            for name in _STATUS:
                del changes[name]
    return HostReport(host.host, host.hypervisor_hostname, changes)
