"""Reads one cell: the first time as a whole, then its changes.

Only one thread at a time may use a :class:`CellReader`. The functions, which
translate rows into our documents, are stateless. A text that cannot be parsed
counts as empty, as it does for the compute service; an invalid row raises,
and the caller leaves it out.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, TypeVar

import msgspec
from sqlalchemy.engine import Connection

from scheduler_service import errors
from scheduler_service.compute import wire
from scheduler_service.compute.follower import databases
from scheduler_service.compute.follower.databases import (
    Cell,
    ReadOnlyDatabase,
    ServiceState,
)
from scheduler_service.model import (
    Aggregate,
    HostReport,
    Instance,
    documents,
    image_properties,
)
from scheduler_service.model.limits import NAME_LENGTH

T = TypeVar('T')
LOG = logging.getLogger(__name__)
# How far back each read goes, in seconds: rows have their times from several
# clocks, and become visible only after these times.
OVERLAP_S = 6.0
_QUIET_S = 2 * OVERLAP_S
_EVER = datetime.datetime(1970, 1, 1)
_USUAL = ServiceState()
# Fields that come from the placement service where it is used.
CAPACITY_FIELDS = (
    'vcpus',
    'memory_mb',
    'local_gb',
    'vcpus_used',
    'memory_mb_used',
    'local_gb_used',
    'cpu_allocation_ratio',
    'ram_allocation_ratio',
    'disk_allocation_ratio',
)
_RATIOS = frozenset(name for name in CAPACITY_FIELDS if 'ratio' in name)
_LARGEST = 2**53


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
                instance,
                row,
                self.flavors,
                images.get(row.uuid),
            )
            for row in databases.instances(conn, hosts)
        ]
        reports = [
            self._made(
                f'host {row.host}',
                host_report,
                row,
                services.get(row.host, _USUAL),
                self.cell.uuid,
                self._options.with_capacity,
            )
            for row in databases.nodes(conn, hosts)
            if row.host in self.hosts and is_initialized(row)
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


def host_report(
    row: Any,
    service: ServiceState,
    cell_uuid: str,
    with_capacity: bool = True,
) -> HostReport:
    """Return the host report of a compute node's row.

    :param with_capacity: false: placement gives totals, use and ratios
    :raises InvalidRequest: a value is out of bounds
    """
    stats: dict[str, Any] = _decoded(row.stats, dict)
    # Placement's capacity includes them; that of NUMA cells does not.
    ratios = {
        name: float(ratio)
        for name in ('cpu_allocation_ratio', 'ram_allocation_ratio')
        if (ratio := getattr(row, name))
    }
    document = {
        'host': row.host,
        'hypervisor_hostname': row.hypervisor_hostname,
        'uuid': row.uuid,
        'status': 'disabled' if service.disabled else 'enabled',
        'disabled_reason': service.reason,
        'state': 'up' if service.up else 'down',
        # With placement, its capacity alone counts, as in the compute service.
        'disk_available_least': (
            row.disk_available_least if with_capacity else None
        ),
        'hypervisor_type': (row.hypervisor_type or '')[:NAME_LENGTH] or None,
        'hypervisor_version': row.hypervisor_version,
        'host_ip': None if row.host_ip is None else str(row.host_ip),
        'supported_instances': _decoded(row.supported_instances, list),
        'cpu_info': _decoded(row.cpu_info, dict),
        'stats': {
            key: value
            for key, value in stats.items()
            if not isinstance(value, dict | list)
        },
        'metrics': _metrics(row.metrics),
        'num_io_ops': _count(stats.get('io_workload')),
        'failed_builds': _count(stats.get('failed_builds')),
        'pci_device_pools': _pci_pools(row.pci_stats),
        'numa_topology': _numa_topology(
            row.numa_topology, {} if with_capacity else ratios
        ),
        'cell_uuid': cell_uuid,
    }
    if with_capacity:
        for name in CAPACITY_FIELDS:
            value = getattr(row, name)
            # A ratio of 0 or NULL: the configured default applies.
            document[name] = (
                value or None if name in _RATIOS else max(value, 0)
            )
    return documents.host_report(document)


def is_initialized(row: Any) -> bool:
    """Whether a compute node has reported its resources yet."""
    return row.free_disk_gb is not None and bool(row.host and row.uuid)


def instance(
    row: Any, flavors: Mapping[int, str], metadata: Any = None
) -> Instance:
    """Return the document of an instance that is on a host.

    :param flavors: internal number -> the public flavor id
    :param metadata: what the compute service keeps of its image; None: it was
        not read
    :raises InvalidRequest: a value is out of bounds
    """
    flavorid = flavors.get(row.instance_type_id)
    return documents.parse(
        {
            'uuid': row.uuid,
            'host': row.host,
            'hypervisor_hostname': row.node or row.host,
            'project_id': row.project_id,
            'image_id': row.image_ref or None,
            'availability_zone': row.availability_zone,
            'task_state': row.task_state,
            'flavor': {'flavorid': flavorid} if flavorid else {},
            'image_meta': image_properties.of_system_metadata(metadata),
        },
        Instance,
    )


def translated_aggregates(
    heads: Sequence[Any], members: Sequence[Any], pairs: Sequence[Any]
) -> tuple[list[Aggregate], list[str]]:
    """Return aggregates with their hosts and metadata, by id.

    :return: the aggregates, and the reason of each that is left out
    """
    hosts: dict[int, set[str]] = defaultdict(set)
    for row in members:
        hosts[row.aggregate_id].add(row.host)
    metadata: dict[int, dict[str, str]] = defaultdict(dict)
    for row in pairs:
        metadata[row.aggregate_id][row.key] = row.value
    made: list[Aggregate] = []
    left_out: list[str] = []
    for row in sorted(heads, key=lambda row: int(row.id)):
        document = {
            'id': row.id,
            'name': row.name,
            'hosts': sorted(hosts[row.id]),
            'metadata': metadata[row.id],
            **({'uuid': row.uuid} if row.uuid else {}),
        }
        try:
            made.append(documents.parse(document, Aggregate))
        except errors.InvalidRequest as error:
            left_out.append(f'aggregate {row.id}: {error}')
    return made, left_out


def _decoded(text: Any, kind: type[T]) -> T:
    """Return a value in JSON; an empty one where it is of another type."""
    try:
        value = msgspec.json.decode(text or '')
    except (msgspec.DecodeError, RecursionError):
        return kind()
    return value if isinstance(value, kind) else kind()


def _count(value: Any) -> int:
    """Return a count, which the compute service keeps as text."""
    try:
        return min(max(int(value), 0), _LARGEST)
    except (TypeError, ValueError, OverflowError):
        return 0


def _metrics(text: Any) -> list[dict[str, Any]]:
    """Return metrics; drop any without a name or a number."""
    return [
        {
            'name': metric['name'],
            'value': metric.get('value'),
            'source': metric.get('source'),
            'timestamp': metric.get('timestamp'),
        }
        for metric in _decoded(text, list)
        if isinstance(metric, dict)
        and isinstance(metric.get('name'), str)
        and isinstance(metric.get('value'), int | float | None)
    ]


def _pci_pools(text: Any) -> list[dict[str, Any]]:
    pools = wire.unwrap(_decoded(text, dict)).get('objects')
    pools = (
        pools if isinstance(pools, list) else wire.unwrap(_decoded(text, list))
    )
    return [pool for pool in pools if isinstance(pool, dict)]


def _numa_topology(
    text: Any, ratios: Mapping[str, float]
) -> dict[str, Any] | None:
    """Return a NUMA topology; None where the host reports no cells."""
    cells = wire.unwrap(_decoded(text, dict)).get('cells')
    if not isinstance(cells, list):
        return None
    return {
        'cells': [
            {key: value for key, value in cell.items() if value is not None}
            for cell in cells
            if isinstance(cell, dict)
        ],
        **ratios,
    }
