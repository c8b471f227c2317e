"""Translates rows of the compute service's tables into our documents.

Stateless: any thread may call the functions. A text that cannot be parsed
counts as empty, as it does for the compute service; an invalid row raises, and
the caller leaves it out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from scheduler_service import errors
from scheduler_service.compute import wire
from scheduler_service.compute.follower.databases import ServiceState
from scheduler_service.model import (
    Aggregate,
    HostReport,
    Instance,
    documents,
    image_properties,
)
from scheduler_service.model.limits import NAME_LENGTH

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
T = TypeVar('T')
_LARGEST = 2**53


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


def aggregates(
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
