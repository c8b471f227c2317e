"""What the engine answers as the compute service expects it.

A caller raises again what is in its own module of exceptions; anything else
reaches it as a remote error, which says nothing to whoever reads the fault of
the instance. So every refusal is a NoValidHost, whose reason says what it is.
Stateless; any thread may call it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service.compute import wire
from scheduler_service.compute.wire import NetworkMetadata
from scheduler_service.model import HostsAnswer, Selection

# Of the API of the placement service that the allocation request is for.
ALLOCATION_REQUEST_VERSION = '1.36'
MODULE = 'nova.exception'
_TOO_FEW = 'There are not enough hosts available.'
# What a tenant may read of errors that say nothing about capacity.
_SHORT = {
    'ServiceBusy': 'The scheduler is busy.',
    'StoreUnavailable': 'The scheduler is not available.',
    'StoreTimeout': 'The scheduler is not available.',
    'TooLate': 'The scheduler answered too late.',
    'RequestCancelled': 'The request was cancelled.',
}


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
                placement.selected,
                *(placement.alternates if alternates else ()),
            )
        ]
        for placement in answer.placements
    ]


def plain(
    answer: HostsAnswer, networks: NetworkMetadata | None = None
) -> list[dict[str, Any]]:
    """Return host, node and limits of each instance, no Selection."""
    return [
        {
            'host': placement.selected.host,
            'nodename': placement.selected.node,
            'limits': _plain_limits(placement.selected, networks),
        }
        for placement in answer.placements
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
        data['network_metadata'] = wire.wrap(
            'NetworkMetadata',
            '1.0',
            {
                'physnets': networks.physnets or [],
                'tunneled': networks.tunneled,
            },
        )
    return wire.wrap('NUMATopologyLimits', '1.1', data)


def _selection(
    selected: Selection,
    amounts: Mapping[str, int],
    networks: NetworkMetadata | None,
) -> dict[str, Any]:
    limits = selected.limits
    return wire.wrap(
        'Selection',
        '1.1',
        {
            'compute_node_uuid': selected.uuid,
            'service_host': selected.host,
            'nodename': selected.node,
            'cell_uuid': selected.cell,
            'limits': wire.wrap(
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


class NoValidHost(Exception):
    """No host for an instance, as the compute service names it.

    :param reason: follows the sentence that every such error begins with
    :ivar kwargs: travels over the bus with the name and the text
    """

    code = 500

    def __init__(self, reason: str = '') -> None:
        self.reason = reason
        self.kwargs: dict[str, Any] = {'reason': reason, 'code': self.code}
        super().__init__(f'No valid host was found. {reason}')


# The class is found by its module and name on the caller's side.
NoValidHost.__module__ = MODULE


def failure(error: errors.SchedulerError, full: bool) -> NoValidHost:
    """Return an error of ours as one that callers catch.

    :param full: give the whole reason, which tells of the capacity of hosts
    """
    text = str(error.args[0]) if error.args else error.name
    if isinstance(error, errors.NoValidHost):
        if not full:
            return NoValidHost(_TOO_FEW)
        return NoValidHost(text.removeprefix('No valid host was found. '))
    if isinstance(error, errors.InvalidRequest):
        # It concerns the request alone.
        return NoValidHost(text)
    if full:
        return NoValidHost(f'{error.name}: {text}')
    return NoValidHost(_SHORT.get(error.name, 'The scheduler failed.'))


def no_such_host(host: str | None, node: str | None) -> NoValidHost:
    """Return that a host or a node that was asked for does not exist."""
    return NoValidHost(f'No such host - host: {host} node: {node} ')
