"""Reads one cell: the first time as a whole, then its changes.

Only one thread at a time may use a :class:`CellReader`.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, TypeVar

from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.compute.follower import databases, translation
from scheduler_service.compute.follower.databases import (
    Cell,
    ReadOnlyDatabase,
    ServiceState,
)
from scheduler_service.model import HostReport, Instance

T = TypeVar('T')
LOG = logging.getLogger(__name__)
# How far back each read goes, in seconds: rows have their times from several
# clocks, and become visible only after these times.
OVERLAP_S = 6.0
_QUIET_S = 2 * OVERLAP_S
_EVER = datetime.datetime(1970, 1, 1)
_USUAL = ServiceState()


@dataclasses.dataclass(frozen=True, slots=True)
class MirrorOptions:
    """Options of the mirror; times in seconds.

    :ivar api_database: URL of the API database
    :ivar cell_database: URL whose parts fill in the templates of cells' URLs
    :ivar with_capacity: false: placement gives totals, use and ratios
    :ivar with_images: whether a weigher compares the images of instances
    """

    api_database: str
    cell_database: str | None = None
    poll_interval: float = 1.0
    full_interval: float = 300.0
    service_down_time: float = 60.0
    connect_timeout: float = 3.0
    statement_timeout: float = 20.0
    with_capacity: bool = True
    with_images: bool = False


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


class CellReader:
    """Follows the database of one cell.

    :ivar hosts: the service hosts that are mapped to the cell
    :ivar flavors: internal number -> the public flavor id
    """

    def __init__(
        self, cell: Cell, database: ReadOnlyDatabase, options: MirrorOptions
    ) -> None:
        self.cell = cell
        self.hosts: Set[str] = frozenset()
        self.flavors: Mapping[int, str] = {}
        self._database = database
        self._options = options
        # Services that are not as usual.
        self._services: dict[str, ServiceState] = {}
        self._nodes: dict[int, tuple[Any, ...]] = {}
        # Marks that differ after any change of a node, and the monotonic
        # time at which they last differed.
        self._marks: Any = None
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

    def read(self) -> CellChanges | None:
        """Return changes; None: nothing changed.

        :raises sqlalchemy.exc.SQLAlchemyError: the database does not answer
        """
        now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
        last, longest = self._full_at, self._options.full_interval
        full = last is None or time.monotonic() - last > longest
        with self._database.reading() as conn:
            services = databases.unusual_services(
                conn, now, self._options.service_down_time
            )
            # Instances before nodes: the compute service writes a node's use
            # after the instance.
            since = _since(databases.newest_instance_change(conn), now)
            instances = databases.changed_instances(conn, since)
            marks = databases.node_marks(conn)
            nodes = self._nodes
            if not self._is_quiet(marks) or full:
                since = _EVER if full else _since(marks[0], now)
                nodes = databases.changed_nodes(conn, since)
            fresh = [
                row
                for uuid, row in instances.items()
                if self._instances.get(uuid) != tuple(row)
            ]
            hosts = None if full else self._affected(services, fresh, nodes)
            changes = None
            if hosts is None or hosts or fresh:
                changes = self._changes(conn, hosts, services, fresh)
        self._services, self._nodes = services, nodes
        self._instances = {uuid: tuple(row) for uuid, row in instances.items()}
        if full:
            self._full_at = time.monotonic()
        return changes

    def _is_quiet(self, marks: Any) -> bool:
        """Whether no node changed for so long that no change can be missed.

        Without the check, all nodes that changed together would be read each
        time until another node changes.
        """
        if marks != self._marks:
            self._marks = marks
            self._marks_at = time.monotonic()
        return time.monotonic() - self._marks_at > _QUIET_S

    def _affected(
        self,
        services: Mapping[str, ServiceState],
        instances: Iterable[Any],
        nodes: Mapping[int, tuple[Any, ...]],
    ) -> set[str]:
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
        services: Mapping[str, ServiceState],
        fresh: Iterable[Any],
    ) -> CellChanges:
        images: Mapping[str, Any] = {}
        if self._options.with_images:
            images = databases.image_metadata(conn, hosts)
        placed = [
            self._made(
                f'instance {row.uuid}',
                translation.instance,
                row,
                self.flavors,
                images.get(row.uuid),
            )
            for row in databases.instances(conn, hosts)
        ]
        reports = [
            self._made(
                f'host {row.host}',
                translation.host_report,
                row,
                services.get(row.host, _USUAL),
                self.cell.uuid,
                self._options.with_capacity,
            )
            for row in databases.nodes(conn, hosts)
            if row.host in self.hosts and translation.is_initialized(row)
        ]
        away = [row for row in fresh if row.deleted or not row.host]
        return CellChanges(
            self.cell,
            hosts,
            list(filter(None, reports)),
            list(filter(None, placed)),
            gone=[row.uuid for row in away],
            failed=[
                row.uuid
                for row in away
                if row.deleted or row.vm_state == 'error'
            ],
        )

    def _made(
        self, what: str, translate: Callable[..., T], *parts: Any
    ) -> T | None:
        """Return a document; None where its row is invalid."""
        try:
            return translate(*parts)
        except errors.SchedulerError as error:
            if what not in self._warned:
                self._warned.add(what)
                LOG.warning(
                    'Cell %s: %s is left out: %s', self.cell.name, what, error
                )
        return None


def _since(
    newest: datetime.datetime | None, now: datetime.datetime
) -> datetime.datetime:
    """Return the time from which changes are read.

    :param newest: time of the newest row, by the clock that wrote it; a clock
        ahead of ours counts as ours
    """
    return min(newest or now, now) - datetime.timedelta(seconds=OVERLAP_S)
