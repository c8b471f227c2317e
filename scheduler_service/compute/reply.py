"""What the engine answers as the compute service expects it.

Stateless; any thread may call it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler_service.compute import objects
from scheduler_service.compute.wire import NetworkMetadata
from scheduler_service.model import HostsAnswer, Selection

# Of the API of the placement service that the allocation request is for.
ALLOCATION_REQUEST_VERSION = '1.36'


def selections(
    answer: HostsAnswer,
    amounts: Mapping[str, int],
    alternates: bool,
    networks: NetworkMetadata | None = None,
) -> list[list[dict[str, Any]]]:
    """Return, for each instance, its Selection, then its alternates.

    :param amounts: resource class -> what each instance takes
    :param alternates: whether alternates are wanted
    :param networks: of the request; goes with the limits of NUMA cells
    """
    # Alternates are the same for all instances of a cell.
    made: dict[str, dict[str, Any]] = {}

    def make(selected: Selection) -> dict[str, Any]:
        if selected.allocation is not msgspec.UNSET:
            return _selection(selected, amounts, networks)
        if selected.uuid not in made:
            made[selected.uuid] = _selection(selected, amounts, networks)
        return made[selected.uuid]

    return [
        [
            make(each)
            for each in (
                one.selected,
                *(one.alternates if alternates else ()),
            )
        ]
        for one in answer.placements
    ]


def plain(
    answer: HostsAnswer, networks: NetworkMetadata | None = None
) -> list[dict[str, Any]]:
    """Return host, node and limits of each instance, no Selection."""
    return [
        {
            'host': one.selected.host,
            'nodename': one.selected.node,
            'limits': _plain_limits(one.selected, networks),
        }
        for one in answer.placements
    ]


def _plain_limits(
    selected: Selection, networks: NetworkMetadata | None
) -> dict[str, Any]:
    numa = _numa_limits(selected, networks)
    limits: dict[str, Any] = dict(selected.limits)
    return limits if numa is None else {**limits, 'numa_topology': numa}


def _numa_limits(
    selected: Selection, networks: NetworkMetadata | None
) -> dict[str, Any] | None:
    """Return what the compute service on the host checks NUMA cells by."""
    if selected.numa_limits is msgspec.UNSET:
        return None
    data: dict[str, Any] = dict(selected.numa_limits)
    if networks is not None:
        data['network_metadata'] = objects.wrap(
            'NetworkMetadata',
            '1.0',
            {
                'physnets': networks.physnets or [],
                'tunneled': networks.tunneled,
            },
        )
    return objects.wrap('NUMATopologyLimits', '1.1', data)


def _selection(
    selected: Selection,
    amounts: Mapping[str, int],
    networks: NetworkMetadata | None,
) -> dict[str, Any]:
    limits = selected.limits
    return objects.wrap(
        'Selection',
        '1.1',
        {
            'compute_node_uuid': selected.uuid,
            'service_host': selected.host,
            'nodename': selected.node,
            'cell_uuid': selected.cell,
            'limits': objects.wrap(
                'SchedulerLimits',
                '1.0',
                {
                    'numa_topology': _numa_limits(selected, networks),
                    'vcpu': limits.get('vcpu'),
                    'disk_gb': limits.get('disk_gb'),
                    'memory_mb': limits.get('memory_mb'),
                },
            ),
            'allocation_request': _allocation_request(selected, amounts),
            'allocation_request_version': ALLOCATION_REQUEST_VERSION,
            'availability_zone': selected.zone,
        },
    )


def _allocation_request(
    selected: Selection, amounts: Mapping[str, int]
) -> str:
    """Return what a claim on a host asks for.

    :param amounts: of the host's own provider, where that is all
    """
    if selected.allocation is not msgspec.UNSET:
        return json.dumps(selected.allocation)
    provider = selected.uuid
    resources = {name: amounts[name] for name in sorted(amounts)}
    return json.dumps(
        {
            'allocations': {provider: {'resources': resources}},
            'mappings': {'': [provider]},
        }
    )
