"""Translates the engine's answers for the compute service.

A caller re-raises only exceptions of its own module; others arrive as remote
errors, which mean nothing to a tenant who reads the fault of the instance. So
every refusal is a NoValidHost, and its reason says what is wrong. Stateless;
any thread may call the functions.
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

# Microversion of the placement API that the allocation request is for.
ALLOCATION_REQUEST_VERSION = '1.36'
MODULE = 'nova.exception'
_TOO_FEW = 'There are not enough hosts available.'
# Texts for tenants, of errors that do not concern capacity.
_SHORT = {
    'Conflict': 'Its allocations were changed by others meanwhile.',
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
    :param alternates: whether to include alternates
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
            make(placement.selected),
            *map(make, placement.alternates if alternates else ()),
        ]
        for placement in answer.placements
    ]


def plain(
    answer: HostsAnswer, networks: NetworkMetadata | None = None
) -> list[dict[str, Any]]:
    """Return host, node and limits of each instance in place of Selections."""
    made = []
    for placement in answer.placements:
        selected = placement.selected
        limits: dict[str, Any] = {**selected.limits}
        numa = _numa_limits(selected, networks)
        if numa is not None:
            limits['numa_topology'] = numa
        made.append(
            {
                'host': selected.host,
                'nodename': selected.node,
                'limits': limits,
            }
        )
    return made


def _numa_limits(
    selected: Selection, networks: NetworkMetadata | None
) -> dict[str, Any] | None:
    """Return the limits by which the host's service checks NUMA cells."""
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
    """Return the allocation request of a claim on a host, in JSON.

    :param amounts: of the host's own provider, where no other gives any
    """
    document = selected.allocation
    if document is msgspec.UNSET:
        resources = dict(sorted(amounts.items()))
        document = {
            'allocations': {selected.uuid: {'resources': resources}},
            'mappings': {'': [selected.uuid]},
        }
    return json.dumps(document)


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


# Callers look the class up by its module and name.
NoValidHost.__module__ = MODULE


def failure(error: errors.SchedulerError, full: bool) -> NoValidHost:
    """Return an error of ours as an exception that callers catch.

    :param full: give the whole reason, which may reveal hosts' capacity
    """
    text = str(error.args[0]) if error.args else error.name
    if isinstance(error, errors.NoValidHost):
        if not full:
            return NoValidHost(_TOO_FEW)
        return NoValidHost(text.removeprefix('No valid host was found. '))
    if isinstance(error, errors.InvalidRequest):
        # The text concerns the request alone.
        return NoValidHost(text)
    if full:
        return NoValidHost(f'{error.name}: {text}')
    return NoValidHost(_SHORT.get(error.name, 'The scheduler failed.'))


def no_such_host(host: str | None, node: str | None) -> NoValidHost:
    """Return the error for a requested host or node that does not exist."""
    return NoValidHost(f'No such host - host: {host} node: {node} ')
