"""Reads one cell: the first time as a whole, then its changes.

Only one thread at a time may use a :class:`CellReader`.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any, TypeVar

from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.compute.follower import databases, translation
from scheduler_service.compute.follower.databases import (
    Cell,
    Fingerprint,
    NodeMarks,
    ReadOnlyDatabase,
)
from scheduler_service.compute.follower.translation import ServiceState
from scheduler_service.model import HostReport, Instance

_UP = ServiceState(disabled=False, reason=None, up=True)


class ServiceStates:
    """Reads the states of services.

    :param down_time: seconds without a sign of life, after which a service
        is down
    """

    def __init__(self, down_time: float) -> None:
        self._down_time = down_time
        self._fingerprint: Fingerprint | None = None
        self._hosts: frozenset[str] = frozenset()

    def reset(self) -> None:
        """Read all services the next time."""
        self._fingerprint = None

    def read(
        self, conn: Connection, now: datetime.datetime
    ) -> dict[str, ServiceState]:
        """Return the state of each service, by host.

        :param now: in UTC, without a time zone
        """
        fingerprint = databases.services_fingerprint(conn)
        fresh = (
            now - datetime.timedelta(seconds=self._down_time),
            now + datetime.timedelta(seconds=self._down_time),
        )
        if fingerprint == self._fingerprint:
            rows = databases.services(conn, fresh)
        else:
            rows = databases.services(conn)
            self._hosts = frozenset(rows)
            self._fingerprint = fingerprint
        states = dict.fromkeys(self._hosts, _UP)
        states.update(
            (host, translation.service_state(row, now, self._down_time))
            for host, row in rows.items()
            if host in self._hosts
        )
        return states


T = TypeVar('T')
LOG = logging.getLogger(__name__)
# How far back each read goes, in seconds: rows have their times from several
# clocks, and become visible only after these times.
OVERLAP_S = 6.0
_QUIET_S = 2 * OVERLAP_S
_ERROR = 'error'


@dataclasses.dataclass(slots=True)
class CellChanges:
    """The present state of those hosts of a cell that changed.

    :ivar hosts: the service hosts; None: all of the cell
    :ivar reports: of their nodes; a node without a report is gone
    :ivar instances: all that are on these hosts
    :ivar gone: instances that are deleted or no longer have a host
    :ivar failed: instances that could not be built, and have no host
    """

    cell: Cell
    hosts: set[str] | None
    reports: list[HostReport]
    instances: list[Instance]
    gone: list[str]
    failed: list[str]


@dataclasses.dataclass(frozen=True, slots=True)
class CellContext:
    """Rows of the API database that reading a cell needs.

    :ivar hosts: the service hosts that are mapped to the cell
    :ivar flavors: internal number -> the public flavor id
    """

    hosts: Set[str]
    flavors: Mapping[int, str]


class CellReader:
    """Follows the database of one cell.

    :param down_time: seconds without a sign of life, after which a service
        is down
    :param full_interval: seconds after which everything is read again
    :param with_capacity: false: placement gives totals, use and ratios
    """

    def __init__(
        self,
        cell: Cell,
        database: ReadOnlyDatabase,
        down_time: float,
        full_interval: float,
        with_capacity: bool,
    ) -> None:
        self.cell = cell
        self._database = database
        self._states = ServiceStates(down_time)
        self._full_interval = full_interval
        self._with_capacity = with_capacity
        self._services: dict[str, ServiceState] = {}
        self._nodes: dict[int, tuple[Any, ...]] = {}
        # Marks that differ after any change of a node, and the monotonic
        # time at which they last differed.
        self._marks: NodeMarks | None = None
        self._marks_at = time.monotonic()
        self._instances: dict[str, tuple[Any, ...]] = {}
        # Monotonic time of the last whole read; None: none yet.
        self._full_at: float | None = None
        self._warned: set[str] = set()

    def reset(self) -> None:
        """Read everything the next time."""
        self._full_at = None

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def read(self, context: CellContext) -> CellChanges | None:
        """Return changes; None: nothing changed.

        :raises sqlalchemy.exc.SQLAlchemyError: the database does not answer
        """
        now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
        last = self._full_at
        full = last is None or time.monotonic() - last > self._full_interval
        with self._database.reading() as conn:
            if full:
                self._states.reset()
            services = self._states.read(conn, now)
            # Instances before nodes: the compute service writes a node's use
            # after the instance.
            since = _since(databases.newest_instance_change(conn), now)
            instances = databases.changed_instances(conn, since)
            marks = databases.node_marks(conn)
            nodes: dict[int, tuple[Any, ...]] = {} if full else self._nodes
            if not self._is_quiet(marks) and not full:
                since = _since(marks.changed_at, now)
                nodes = databases.changed_nodes(conn, since)
            fresh = self._fresh_instances(instances)
            hosts = None
            if not full:
                hosts = self._affected(services, fresh, nodes)
            changes = None
            if hosts is None or hosts or fresh:
                rows = databases.nodes(
                    conn, None if hosts is None else sorted(hosts)
                )
                if full:
                    rows = _noted(rows, nodes)
                changes = self._changes(
                    conn, hosts, rows, services, fresh, context
                )
        self._services, self._nodes = services, nodes
        self._instances = {uuid: tuple(row) for uuid, row in instances.items()}
        if full:
            self._full_at = time.monotonic()
        return changes

    def _is_quiet(self, marks: NodeMarks) -> bool:
        """Whether no node changed for so long that no change can be missed.

        Without the check, all nodes that changed together would be read each
        time until another node changes.
        """
        if marks != self._marks:
            self._marks = marks
            self._marks_at = time.monotonic()
        return time.monotonic() - self._marks_at > _QUIET_S

    def _fresh_instances(self, rows: Mapping[str, Any]) -> list[Any]:
        """Return the rows that differ from the last read."""
        before = self._instances
        return [
            row for uuid, row in rows.items() if before.get(uuid) != tuple(row)
        ]

    def _affected(
        self,
        services: Mapping[str, ServiceState],
        instances: Iterable[Any],
        nodes: Mapping[int, tuple[Any, ...]],
    ) -> set[str]:
        """Return the service hosts with any change."""
        before = self._services
        hosts = {
            host
            for host in services.keys() | before.keys()
            if services.get(host) != before.get(host)
        }
        hosts.update(row.host for row in instances if row.host)
        hosts.update(
            values[0]
            for number, values in nodes.items()
            if self._nodes.get(number) != values and values[0]
        )
        return hosts

    def _changes(
        self,
        conn: Connection,
        hosts: set[str] | None,
        nodes: Iterable[Any],
        services: Mapping[str, ServiceState],
        fresh: Iterable[Any],
        context: CellContext,
    ) -> CellChanges:
        ordered = None if hosts is None else sorted(hosts)
        placed = [
            instance
            for row in databases.instances(conn, ordered)
            if (instance := self._instance(row, context)) is not None
        ]
        reports = [
            report
            for row in nodes
            if row.host in context.hosts
            and row.host in services
            and translation.is_initialized(row)
            and (report := self._report(row, services[row.host])) is not None
        ]
        away = [row for row in fresh if row.deleted or not row.host]
        return CellChanges(
            self.cell,
            hosts,
            reports,
            placed,
            gone=[row.uuid for row in away],
            failed=[
                row.uuid
                for row in away
                if row.deleted or row.vm_state == _ERROR
            ],
        )

    def _report(self, row: Any, service: ServiceState) -> HostReport | None:
        return self._made(
            f'host {row.host}',
            lambda: translation.host_report(
                row, service, self.cell.uuid, self._with_capacity
            ),
        )

    def _instance(self, row: Any, context: CellContext) -> Instance | None:
        return self._made(
            f'instance {row.uuid}',
            lambda: translation.instance(row, context.flavors),
        )

    def _made(self, what: str, make: Callable[[], T]) -> T | None:
        """Return a document; None where its row is invalid."""
        try:
            return make()
        except errors.SchedulerError as error:
            if what not in self._warned:
                self._warned.add(what)
                LOG.warning(
                    'Cell %s: %s is left out: %s', self.cell.name, what, error
                )
        return None


def _noted(
    rows: Iterable[Any], nodes: dict[int, tuple[Any, ...]]
) -> Iterator[Any]:
    """Yield rows of nodes; keep their changing columns in *nodes*."""
    for row in rows:
        nodes[row.id] = databases.moving(row)
        yield row


def _since(
    newest: datetime.datetime | None, now: datetime.datetime
) -> datetime.datetime:
    """Return the time from which changes are read.

    :param newest: time of the newest row, by the clock that wrote it; a clock
        ahead of ours counts as ours
    """
    return min(newest or now, now) - datetime.timedelta(seconds=OVERLAP_S)
