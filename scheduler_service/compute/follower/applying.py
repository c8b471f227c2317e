"""Writes changes of the compute service's databases into our store.

An :class:`Applier` belongs to the mirror's thread. It writes only rows that
differ, in transactions of a few hundred hosts. Applying changes twice is
harmless: after a failure halfway the whole cell is read and applied again.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec
import sqlalchemy as sa
from oslo_db import exception as db_exception
from sqlalchemy.engine import Connection, Row

from scheduler_service import errors
from scheduler_service.compute.follower.cells import CellChanges
from scheduler_service.model import Aggregate, HostReport, Instance
from scheduler_service.store import schema
from scheduler_service.store.claims import lifecycle, stage_records
from scheduler_service.store.connection import Store, Writer, in_chunks
from scheduler_service.store.driver_errors import first_line
from scheduler_service.store.reading import loading
from scheduler_service.store.rows import select_in
from scheduler_service.store.writing import aggregates as aggregate_rows
from scheduler_service.store.writing import hosts as host_rows
from scheduler_service.store.writing import instances as instance_rows

LOG = logging.getLogger(__name__)
_HOSTS_AT_ONCE = 500
_INSTANCES_AT_ONCE = 1000
_CHUNK = 500


# Takes the uuid of a cell, the service hosts that were read (None: all), and
# reports of their nodes that the store does not have.
OnNew = Callable[[str, Collection[str] | None, Sequence[HostReport]], None]


class Applier:
    """Applies changes to a store.

    :param before_each: called before each transaction; it may raise to stop
    :ivar on_new: gets the nodes of a cell that are new, to write them once
        their capacity is read; None: they are written at once
    """

    def __init__(self, store: Store, before_each: Callable[[], None]) -> None:
        self._store = store
        self._before_each = before_each
        self.on_new: OnNew | None = None
        # Hash of the last report of each node that was written.
        self._written: dict[tuple[str, str], int] = {}

    def forget(self) -> None:
        """Write everything anew: another daemon may have written since."""
        self._written.clear()

    def apply(self, changes: CellChanges) -> list[str]:
        """Apply the changes of a cell.

        :return: the service hosts with any change
        :raises StoreUnavailable: the database does not answer
        """
        touched = self._put_instances(changes)
        self._remove_instances(changes)
        stored = self._stored_nodes(changes)
        reported = {
            (report.host, report.node): report for report in changes.reports
        }
        gone = [
            node
            for key, node in stored.items()
            if key not in reported
            or node.uuid != reported[key].changes.get('uuid')
        ]
        self._remove_nodes(gone)
        if self.on_new is not None:
            kept = stored.keys() - {(node.host, node.node) for node in gone}
            new = [reported.pop(key) for key in reported.keys() - kept]
            self.on_new(changes.cell.uuid, changes.hosts, new)
        reports = []
        for key, report in reported.items():
            mark = hash(msgspec.json.encode(report.changes))
            # Each change already took claims into account.
            if (
                changes.hosts is not None
                or key not in stored
                or self._written.get(key) != mark
            ):
                reports.append(report)
            self._written[key] = mark
        for part in in_chunks(reports, _HOSTS_AT_ONCE):
            self._write_reports(part)
        touched |= {report.host for report in reports}
        return sorted(touched)

    def _write(self, work: Callable[[Writer], Any]) -> Any:
        self._before_each()
        return self._store.write(work)

    def _write_reports(self, reports: Sequence[HostReport]) -> None:
        """Write reports together; each by itself where that fails."""
        try:
            self._write(lambda writer: host_rows.report(writer, reports))
        except db_exception.DBError as fault:
            if len(reports) == 1:
                LOG.warning(
                    'Host %s cannot be mirrored: %s',
                    reports[0].host,
                    first_line(fault),
                )
                return
            for report in reports:
                self._write_reports([report])

    def _put_instances(self, changes: CellChanges) -> set[str]:
        """Write instances that differ; return the hosts that they change."""
        reported = {instance.uuid: instance for instance in changes.instances}
        with self._store.reading() as conn:
            uuids = None if changes.hosts is None else sorted(reported)
            stored = {
                instance.uuid: (instance, state)
                for instance, state in loading.instance_documents(conn, uuids)
            }
            moving = loading.bound_for(conn, uuids)
        differ = [
            instance
            for uuid, instance in reported.items()
            if uuid not in stored
            or uuid in moving
            or stored[uuid][1] == 'claimed'
            or not _is_same(stored[uuid][0], instance)
        ]
        for part in in_chunks(differ, _INSTANCES_AT_ONCE):
            self._write(partial(instance_rows.report, instances=part))
        # Also where they are no longer: they make room there.
        return {instance.host for instance in differ} | {
            stored[instance.uuid][0].host
            for instance in differ
            if instance.uuid in stored
        }

    def _remove_instances(self, changes: CellChanges) -> None:
        """Remove instances that are gone from where the store has them.

        A claimed instance that is on no host yet is being built, and stays
        unless it failed.
        """
        present = {instance.uuid for instance in changes.instances}
        left = defaultdict(set)
        with self._store.reading() as conn:
            for uuid, host in _reported(conn, changes):
                if uuid not in present:
                    left[host].add(uuid)
            for uuid, host, state in _placed(conn, changes.gone):
                if state != 'claimed' and uuid not in present:
                    left[host].add(uuid)
        for host, uuids in left.items():
            self._remove_from(host, sorted(uuids))
        failed = [uuid for uuid in changes.failed if uuid not in present]
        for part in in_chunks(failed, _CHUNK):
            self._forget(part)

    def _remove_from(self, host: str, uuids: list[str]) -> None:
        def work(writer: Writer) -> None:
            # Their allocations in placement belong to the compute service.
            stage_records.take_over(writer.conn, uuids)
            lifecycle.remove_from_host(writer, host, uuids, starting_stay=True)

        self._write(work)

    def _forget(self, uuids: list[str]) -> None:
        """Release the claims of deleted instances, and remove them."""
        with self._store.reading() as conn:
            stored = [uuid for uuid, _, _ in _placed(conn, uuids)]
        if not stored:
            return

        def work(writer: Writer) -> None:
            stage_records.take_over(writer.conn, stored, ended=True)
            lifecycle.release(writer, stored)
            instance_rows.remove(writer, stored)

        self._write(work)

    def _stored_nodes(
        self, changes: CellChanges
    ) -> dict[tuple[str, str], Row[Any]]:
        table = schema.hosts
        if changes.hosts is not None:
            hosts = changes.hosts | {report.host for report in changes.reports}
            return self._nodes_where(table.c.host, sorted(hosts))
        cell = self._nodes_where(table.c.cell_uuid, [changes.cell.uuid])
        # Nodes may have been in another cell, or in none.
        names = sorted({report.host for report in changes.reports})
        return {**cell, **self._nodes_where(table.c.host, names)}

    def _nodes_where(
        self, column: Any, values: Iterable[str]
    ) -> dict[tuple[str, str], Row[Any]]:
        table = schema.hosts
        query = sa.select(
            table.c.id, table.c.host, table.c.node, table.c.uuid, table.c.state
        )
        with self._store.reading() as conn:
            rows = select_in(conn, query, column, values)
            return {(row.host, row.node): row for row in rows}

    def _remove_nodes(self, nodes: Sequence[Row[Any]]) -> None:
        """Remove nodes; mark those that still hold claims as down."""
        column = schema.allocations.c.host_id
        query = sa.select(column).distinct()
        with self._store.reading() as conn:
            rows = select_in(conn, query, column, [node.id for node in nodes])
            busy = {row.host_id for row in rows}
        free = [node.id for node in nodes if node.id not in busy]
        try:
            for part in in_chunks(free, _CHUNK):
                self._write(partial(host_rows.remove, ids=part))
        except errors.Conflict as error:
            # Claimed just now: the next whole read tries again.
            LOG.warning('A deleted host could not be removed yet: %s', error)
        self._mark_down([node for node in nodes if node.id in busy])

    def _mark_down(self, nodes: Iterable[Row[Any]]) -> None:
        nodes = list(nodes)
        for node in nodes:
            self._written.pop((node.host, node.node), None)
        up = [
            HostReport(node.host, node.node, {'state': 'down'})
            for node in nodes
            if node.state == 'up'
        ]
        for part in in_chunks(up, _HOSTS_AT_ONCE):
            self._write_reports(part)

    def mark_cell_down(self, cell_uuid: str) -> None:
        """Mark all nodes of a cell as down."""
        column = schema.hosts.c.cell_uuid
        self._mark_down(self._nodes_where(column, [cell_uuid]).values())

    def remove_other_cells(self, cells: Iterable[str]) -> None:
        """Remove the nodes of all cells but these.

        Hosts in no cell were added by hand, and stay.
        """
        column = schema.hosts.c.cell_uuid
        query = sa.select(column).distinct().where(column.is_not(None))
        with self._store.reading() as conn:
            stored = set(conn.execute(query).scalars())
        left = stored - set(cells)
        self._remove_nodes([*self._nodes_where(column, left).values()])

    def put_aggregates(self, aggregates: Sequence[Aggregate]) -> None:
        """Replace the stored aggregates."""
        self._write(partial(aggregate_rows.replace, aggregates=aggregates))


def _is_same(stored: Instance, reported: Instance) -> bool:
    """Whether the stored instance equals the one read.

    A field that is empty in the rows keeps its value from the request, and an
    image has its properties from there.
    """
    if reported.image_meta and not stored.image_meta:
        return False
    return all(
        getattr(stored, name)
        == (getattr(reported, name) or getattr(stored, name))
        for name in ('project_id', 'image_id', 'availability_zone', 'flavor')
    ) and (
        stored.host,
        stored.hypervisor_hostname,
        stored.task_state,
    ) == (reported.host, reported.hypervisor_hostname, reported.task_state)


def _reported(
    conn: Connection, changes: CellChanges
) -> Iterable[tuple[str, str]]:
    """Return (uuid, host) of stored instances on hosts of the changes."""
    table, hosts = schema.instances, schema.hosts
    query = sa.select(table.c.uuid, table.c.host).where(
        table.c.state != 'claimed', loading.IS_INSTANCE
    )
    if changes.hosts is None:
        mine = sa.select(hosts.c.host).where(
            hosts.c.cell_uuid == changes.cell.uuid
        )
        return list(conn.execute(query.where(table.c.host.in_(mine))))
    return select_in(conn, query, table.c.host, changes.hosts)


def _placed(
    conn: Connection, uuids: Sequence[str]
) -> Iterable[tuple[str, str, str]]:
    """Return (uuid, host, state) of those instances that are stored."""
    table = schema.instances
    query = sa.select(table.c.uuid, table.c.host, table.c.state)
    return select_in(conn, query, table.c.uuid, uuids)
