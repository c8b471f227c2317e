"""Reads one cell: the first time as a whole, then what changed since.

A :class:`CellReader` belongs to whichever thread reads the cell at the time;
only one does.
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
        """Read all the next time."""
        self._fingerprint = None

    def read(
        self, conn: Connection, now: datetime.datetime
    ) -> dict[str, ServiceState]:
        """Return the state of each service, by host.

        :param now: in UTC, without a time zone
        """
        found = databases.services_fingerprint(conn)
        fresh = (
            now - datetime.timedelta(seconds=self._down_time),
            now + datetime.timedelta(seconds=self._down_time),
        )
        if found == self._fingerprint:
            rows = databases.services(conn, fresh)
        else:
            rows = databases.services(conn)
            self._hosts = frozenset(rows)
            self._fingerprint = found
        states = dict.fromkeys(self._hosts, _UP)
        states.update(
            (host, translation.service_state(row, now, self._down_time))
            for host, row in rows.items()
            if host in self._hosts
        )
        return states


T = TypeVar('T')
LOG = logging.getLogger(__name__)
# How far back each look goes, in seconds: the times of rows are those of
# several clocks, and a row becomes visible only after its time.
OVERLAP_S = 6.0
_QUIET_S = 2 * OVERLAP_S
_ERROR = 'error'


@dataclasses.dataclass(slots=True)
class CellChanges:
    """What is so in a cell now.

    :ivar hosts: the service hosts that this is about; None: all of the cell
    :ivar reports: of their nodes; a node without one is gone
    :ivar instances: all that are on these hosts
    :ivar gone: instances that are deleted or have no host any more
    :ivar failed: instances that could not be built, and have no host
    """

    cell: Cell
    hosts: set[str] | None
    reports: list[HostReport]
    instances: list[Instance]
    gone: list[str]
    failed: list[str]


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """What the API database says, which reading a cell needs.

    :ivar hosts: the service hosts that are mapped to the cell
    :ivar flavors: internal number -> the id that users know
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
        # What moves with changes of nodes, and when it last moved.
        self._marks: NodeMarks | None = None
        self._marks_at = time.monotonic()
        self._instances: dict[str, tuple[Any, ...]] = {}
        # Monotonic time of the last whole read; None: there is none yet.
        self._full_at: float | None = None
        self._warned: set[str] = set()

    def reset(self) -> None:
        """Read everything the next time."""
        self._full_at = None

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def read(self, known: Known) -> CellChanges | None:
        """Return what changed; None: nothing did.

        :raises sqlalchemy.exc.SQLAlchemyError: the database does not answer
        """
        now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
        last = self._full_at
        full = last is None or time.monotonic() - last > self._full_interval
        with self._database.reading() as conn:
            if full:
                self._states.reset()
            services = self._states.read(conn, now)
            # Before the nodes: what an instance takes is written after it.
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
            found = None
            if hosts is None or hosts or fresh:
                rows = databases.nodes(
                    conn, None if hosts is None else sorted(hosts)
                )
                if full:
                    rows = _noted(rows, nodes)
                found = self._changes(
                    conn, hosts, rows, services, fresh, known
                )
        self._services, self._nodes = services, nodes
        self._instances = {uuid: tuple(row) for uuid, row in instances.items()}
        if full:
            self._full_at = time.monotonic()
        return found

    def _is_quiet(self, marks: NodeMarks) -> bool:
        """Whether no node changed for so long that no change can be missed.

        Without this, all nodes that changed together are read each time
        until another one changes.
        """
        if marks != self._marks:
            self._marks = marks
            self._marks_at = time.monotonic()
        return time.monotonic() - self._marks_at > _QUIET_S

    def _fresh_instances(self, rows: Mapping[str, Any]) -> list[Any]:
        """Return the rows that are not as they were at the last look."""
        known = self._instances
        return [
            row for uuid, row in rows.items() if known.get(uuid) != tuple(row)
        ]

    def _affected(
        self,
        services: Mapping[str, ServiceState],
        instances: Iterable[Any],
        nodes: Mapping[int, tuple[Any, ...]],
    ) -> set[str]:
        """Return the service hosts of which something changed."""
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
        known: Known,
    ) -> CellChanges:
        ordered = None if hosts is None else sorted(hosts)
        placed = [
            found
            for row in databases.instances(conn, ordered)
            if (found := self._instance(row, known)) is not None
        ]
        reports = [
            report
            for row in nodes
            if row.host in known.hosts
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

    def _instance(self, row: Any, known: Known) -> Instance | None:
        return self._made(
            f'instance {row.uuid}',
            lambda: translation.instance(row, known.flavors),
        )

    def _made(self, what: str, make: Callable[[], T]) -> T | None:
        """Return a document; None where none can be made of its row."""
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
    """Yield rows of nodes; keep in *nodes* how they are now."""
    for row in rows:
        nodes[row.id] = databases.moving(row)
        yield row


def _since(
    newest: datetime.datetime | None, now: datetime.datetime
) -> datetime.datetime:
    """Return since when changes are read, where the newest is this one.

    That is a while before, by the clocks that write the rows, and never by
    one that is ahead of ours.
    """
    return min(newest or now, now) - datetime.timedelta(seconds=OVERLAP_S)
