"""Parts of a request: image, destination, NUMA topology, PCI devices, group.

Each function takes one object of ``wire`` and returns the part of our own
document as plain values. Stateless.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NoReturn

import msgspec

from scheduler_service import errors
from scheduler_service.compute import wire

_PAGE_SIZES = {-1: 'small', -2: 'large', -3: 'any'}
_DEDICATED = ('dedicated', 'mixed')
# Affinity of devices and NUMA cells that has to hold; the other policies
# only prefer it, or apply where the host tells of which cell a device is.
_STRICT_AFFINITY = ('required', 'socket')
# Of a number that travels as text.
_DIGITS = 15


def refuse(name: str, what: str) -> NoReturn:
    """Refuse a request for something that cannot be scheduled here.

    :param name: of the field that asks for it
    :raises InvalidRequest: always
    """
    raise errors.InvalidRequest(
        f'{name}: {what} not supported by this scheduler',
        at=name,
        unsupported=name,
    )


def image(found: wire.Image | None) -> dict[str, Any] | None:
    """Return an image; traits and NUMA cells as they are in an image.

    :raises InvalidRequest: a property that is a list is none
    """
    if found is None:
        return None
    properties: dict[str, Any] = {}
    for name, value in (found.properties or {}).items():
        if value is None:
            continue
        if name == 'traits_required':
            traits = _listed(name, value, list[str])
            properties.update((f'trait:{one}', 'required') for one in traits)
        elif name == 'hw_numa_cpus':
            cells = enumerate(_listed(name, value, list[list[int]]))
            properties.update(
                (f'{name}.{index}', ','.join(str(cpu) for cpu in cpus))
                for index, cpus in cells
            )
        elif name == 'hw_numa_mem':
            sizes = enumerate(_listed(name, value, list[int]))
            properties.update(
                (f'{name}.{index}', size) for index, size in sizes
            )
        else:
            properties[name] = value
    return {
        'id': found.id,
        'disk_format': found.disk_format,
        'properties': properties,
    }


def _listed(name: str, value: Any, kind: Any) -> Any:
    """Return a property of an image that is a list.

    :raises InvalidRequest: it is not of this kind
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as fault:
        place = f'image.properties.{name}'
        raise errors.InvalidRequest(f'{place}: {fault}', at=place) from None


def destination(found: wire.Destination | None) -> dict[str, Any] | None:
    """Return a requested destination."""
    if found is None:
        return None
    return {
        'host': found.host,
        'node': found.node,
        'cell': found.cell.uuid if found.cell else None,
        'allow_cross_cell_move': bool(found.allow_cross_cell_move),
        'aggregates': found.aggregates or [],
        'forbidden_aggregates': found.forbidden_aggregates or [],
    }


def tried(found: wire.Retries | None) -> list[tuple[str, str]]:
    """Return the (host, node) pairs that were tried before."""
    if found is None or found.hosts is None:
        return []
    return [
        (one.host, one.hypervisor_hostname or one.host)
        for one in found.hosts.objects
        if one.host
    ]


def numa_topology(found: wire.NumaTopology | None) -> dict[str, Any] | None:
    """Return a NUMA topology, None for none.

    :raises InvalidRequest: its cells differ in what is one for all here
    """
    if found is None or not found.cells:
        return None
    pages = {cell.pagesize for cell in found.cells}
    threads = {cell.cpu_thread_policy or '' for cell in found.cells}
    if len(pages) > 1 or len(threads) > 1:
        refuse(
            'numa_topology.cells',
            'different page sizes or thread policies in one instance are',
        )
    size = pages.pop()
    return {
        'cells': [
            {
                'cpus': len({*(cell.cpuset or ()), *(cell.pcpuset or ())}),
                'memory_mb': cell.memory,
            }
            for cell in found.cells
        ],
        'pinned': any(dedicated_cpus(cell) for cell in found.cells),
        'thread_policy': threads.pop(),
        'isolated_emulator': found.emulator_threads_policy == 'isolate',
        'page_size': '' if size is None else _PAGE_SIZES.get(size, str(size)),
    }


def dedicated_cpus(cell: wire.NumaCell) -> int:
    """Return how many CPUs of a guest's cell are dedicated to it."""
    if cell.pcpuset:
        return len(cell.pcpuset)
    # Older callers have all CPUs in one set.
    return len(cell.cpuset or ()) if cell.cpu_policy in _DEDICATED else 0


def pci_requests(
    found: wire.PciRequests | None,
    has_numa: bool,
    placed: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Return requests for PCI devices.

    :param has_numa: whether the instance has a NUMA topology
    :param placed: ids of requests that groups of resources stand for
    :raises InvalidRequest: they have to be on the NUMA cells of the instance,
        or are asked for by their resource class
    """
    requests = []
    for index, one in enumerate(found.requests if found else ()):
        if one.request_id in placed:
            continue
        place = f'pci_requests[{index}]'
        if has_numa and one.numa_policy in _STRICT_AFFINITY:
            refuse(
                f'{place}.numa_policy',
                f'the policy {one.numa_policy} for NUMA affinity is',
            )
        alternatives = [_device(spec, place) for spec in one.spec or [{}]]
        requests.append(
            {
                'name': one.alias_name or one.requester_id,
                'count': one.count,
                'alternatives': alternatives,
            }
        )
    return requests


def _device(spec: dict[str, Any], place: str) -> dict[str, str | None]:
    for name in ('resource_class', 'traits'):
        if spec.get(name):
            refuse(f'{place}.spec.{name}', 'devices by resource class are')
    for name, value in spec.items():
        if isinstance(value, list):
            refuse(f'{place}.spec.{name}', 'lists of capabilities are')
    return {
        name: None if value is None else str(value)
        for name, value in spec.items()
        if not name.startswith('rp_uuid')
    }


def group(found: wire.Group | None) -> dict[str, Any] | None:
    """Return a server group as our document; None where it has no policy.

    :raises InvalidRequest: its rule is no number
    """
    if found is None:
        return None
    policy = found.policy or next(iter(found.policies or ()), None)
    if policy is None:
        return None
    rules = {}
    most = (found.rules or {}).get('max_server_per_host')
    if most is not None:
        if not (most.isascii() and most.isdigit() and len(most) <= _DIGITS):
            raise errors.InvalidRequest(
                'instance_group.rules.max_server_per_host: expected a number',
                at='instance_group.rules.max_server_per_host',
            )
        rules['max_server_per_host'] = int(most)
    return {
        'uuid': found.uuid,
        'name': found.name or found.uuid,
        'project_id': found.project_id,
        'policy': policy,
        'rules': rules,
        'members': found.members or [],
    }
