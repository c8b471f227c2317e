"""Makes hosts of v1 Nodes and requests of v1 Pods, when we are the extender.

An annotation with our own document is used if there is one. Else the fields
of the object are: the capacity of a node from ``allocatable``, rounded down,
and the requests of a pod, rounded up. What is in use on a node is not in it.
Stateless; used by threads of the HTTP server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import ROUND_DOWN, Decimal
from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service import extender_wire as wire
from scheduler_service.kube import quantity
from scheduler_service.kube.classes import class_of
from scheduler_service.model import Host, Request, documents

_ARCHITECTURES = {'amd64': 'x86_64', 'arm64': 'aarch64', '386': 'i686'}
_ZONES = (
    'topology.kubernetes.io/zone',
    'failure-domain.beta.kubernetes.io/zone',
)
_FEATURE = 'feature.node.kubernetes.io/cpu-cpuid.'
_MIB, _GIB = 2**20, 2**30
_MAX = 2**53


def _objects(document: Any, name: str) -> dict[str, Any]:
    return wire.field(document, name, dict) or {}


def _listed(document: Any, name: str) -> list[Any]:
    return wire.field(document, name, list) or []


def _annotated(document: Any, key: str) -> Any:
    """Return our own document in an annotation; None if there is none.

    :raises WireError: it is not JSON
    """
    text = _objects(_objects(document, 'metadata'), 'annotations').get(key)
    if not isinstance(text, str):
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise wire.WireError(f'annotation {key}: not JSON') from None


def node_host(node: Any, domain: str) -> tuple[Host, str | None]:
    """Return a node as a host, and its zone.

    :raises WireError: it is not a node, or the annotation is not a host
    """
    labels = _objects(_objects(node, 'metadata'), 'labels')
    for key, value in labels.items():
        if value is not None and not isinstance(value, str):
            raise wire.WireError(f'label {key[:100]}: expected a string')
    zone = next((labels[key] for key in _ZONES if labels.get(key)), None)
    given = _annotated(node, f'{domain}/host-document')
    if given is not None:
        try:
            return documents.parse(given, Host, errors.InvalidInventory), zone
        except errors.InvalidInventory as fault:
            raise wire.WireError(f'{domain}/host-document: {fault}') from None
    return _plain_host(node, labels, domain), zone


def _plain_host(node: Any, labels: Mapping[str, Any], domain: str) -> Host:
    name = wire.name_of(node)
    if not name:
        raise wire.WireError('node: metadata.name is required')
    status = _objects(node, 'status')
    size = _objects(status, 'allocatable') or _objects(status, 'capacity')
    resources = {
        offered: {'total': _count(value)}
        for key, value in size.items()
        if (offered := class_of(key, domain))
    }
    architecture = labels.get('kubernetes.io/arch') or wire.field(
        _objects(status, 'nodeInfo'), 'architecture', str
    )
    architecture = _ARCHITECTURES.get(architecture, architecture)
    document = {
        'host': name[:255],
        'vcpus': _down(_amount(quantity.thousandths, size, 'cpu'), 1000),
        'memory_mb': _down(_amount(quantity.whole, size, 'memory'), _MIB),
        'local_gb': _down(
            _amount(quantity.whole, size, 'ephemeral-storage'), _GIB
        ),
        'cpu_allocation_ratio': 1.0,
        'ram_allocation_ratio': 1.0,
        'disk_allocation_ratio': 1.0,
        'state': 'up' if _ready(status) else 'down',
        'traits': sorted(_traits(labels, domain)),
        'resources': resources,
    }
    if architecture:
        document['supported_instances'] = [[architecture, None, None]]
    try:
        return documents.parse(document, Host, errors.InvalidInventory)
    except errors.InvalidInventory as fault:
        raise wire.WireError(f'node {name}: {fault}') from None


def _ready(status: Any) -> bool:
    """Whether the condition Ready is true; a node without it is ready."""
    for condition in _listed(status, 'conditions'):
        if wire.field(condition, 'type', str) == 'Ready':
            return bool(wire.field(condition, 'status', str) == 'True')
    return True


def _traits(labels: Mapping[str, Any], domain: str) -> set[str]:
    traits = set()
    for key, value in labels.items():
        if value != 'true':
            continue
        if key.startswith(f'trait.{domain}/'):
            traits.add(key.split('/', 1)[1].upper())
        elif key.startswith(_FEATURE):
            traits.add(f'HW_CPU_X86_{key.removeprefix(_FEATURE).upper()}')
    return {trait for trait in traits if trait.replace('_', '').isalnum()}


def pod_request(pod: Any, domain: str) -> Request:
    """Return a pod as a request.

    :raises WireError: it is not a pod, or the annotation is not a request
    """
    given = _annotated(pod, f'{domain}/request')
    metadata = _objects(pod, 'metadata')
    document = given if given is not None else _plain_request(pod, domain)
    try:
        request = documents.request(document)
    except errors.InvalidRequest as fault:
        name = wire.field(metadata, 'name', str)
        raise wire.WireError(f'pod {name}: {fault}') from None
    if given is not None:
        request = _with_classes(request, pod_classes(pod, domain))
    return request.with_ids()


def _with_classes(request: Request, classes: Mapping[str, int]) -> Request:
    """Return a request that also asks for classes that it does not name.

    An annotation that says nothing of a resource takes it from no container.
    """
    known = request.resources
    more = {name: n for name, n in classes.items() if name not in known}
    if not more:
        return request
    return msgspec.structs.replace(request, amounts={**known, **more})


def pod_classes(pod: Any, domain: str) -> dict[str, int]:
    """Return how much of each extended resource a pod requests, by class.

    :raises WireError: a quantity is not valid
    """
    return classes_of(pod_amounts(pod), domain)


def has_request(pod: Any, domain: str) -> bool:
    """Whether an annotation of a pod has a request of ours."""
    annotations = _objects(_objects(pod, 'metadata'), 'annotations')
    return f'{domain}/request' in annotations


def classes_of(amounts: Mapping[str, Decimal], domain: str) -> dict[str, int]:
    """Return the extended resources among amounts, by class."""
    asked: dict[str, int] = {}
    for key, amount in amounts.items():
        name = class_of(key, domain)
        if name is not None and amount > 0:
            asked[name] = asked.get(name, 0) + _up(amount, 1)
    return asked


def _plain_request(pod: Any, domain: str) -> dict[str, Any]:
    spec = _objects(pod, 'spec')
    amounts = pod_amounts(pod)
    cpu = amounts.pop('cpu', Decimal(0))
    memory = amounts.pop('memory', Decimal(0))
    disk = amounts.pop('ephemeral-storage', Decimal(0))
    specs = {
        f'resources:{name}': str(amount)
        for name, amount in classes_of(amounts, domain).items()
    }
    selector = _objects(spec, 'nodeSelector')
    for key, value in selector.items():
        if key.startswith(f'trait.{domain}/') and value == 'true':
            specs[f'trait:{key.split("/", 1)[1].upper()}'] = 'required'
    zone = next((selector[key] for key in _ZONES if selector.get(key)), None)
    document: dict[str, Any] = {
        'project_id': wire.field(
            _objects(pod, 'metadata'), 'namespace', str
        ) or None,
        'flavor': {
            'vcpus': _up(cpu, 1),
            'memory_mb': _up(memory, _MIB),
            'root_gb': _up(disk, _GIB),
            'extra_specs': specs,
        },
        'availability_zone': zone,
    }  # fmt: skip
    return document


def pod_amounts(pod: Any) -> dict[str, Decimal]:
    """Return how much of each resource a pod requests, in units of 1.

    That is the larger one of: all containers and sidecars together; each init
    container with the sidecars before it. The pod's overhead is added.

    :raises WireError: a quantity is not valid
    """
    spec = _objects(pod, 'spec')
    total: dict[str, Decimal] = {}
    for container in _listed(spec, 'containers'):
        _add(total, _requested(container))
    sidecars: dict[str, Decimal] = {}
    peak: dict[str, Decimal] = {}
    for container in _listed(spec, 'initContainers'):
        requested = _requested(container)
        if wire.field(container, 'restartPolicy', str) == 'Always':
            _add(sidecars, requested)
            _raise_to(peak, sidecars)
        else:
            step = dict(sidecars)
            _add(step, requested)
            _raise_to(peak, step)
    _add(total, sidecars)
    whole = _requested(spec)
    total.update(
        (name, amount)
        for name, amount in whole.items()
        if name in ('cpu', 'memory') or name.startswith('hugepages-')
    )
    _raise_to(total, peak)
    _add(total, _quantities(_objects(spec, 'overhead')))
    return total


def _requested(container: Any) -> dict[str, Decimal]:
    resources = _objects(container, 'resources')
    limits = _quantities(_objects(resources, 'limits'))
    return {**limits, **_quantities(_objects(resources, 'requests'))}


def _quantities(values: Mapping[str, Any]) -> dict[str, Decimal]:
    return {
        name: _checked(quantity.parse, value, name)
        for name, value in values.items()
    }


def _add(total: dict[str, Decimal], more: Mapping[str, Decimal]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Decimal(0)) + amount


def _raise_to(peak: dict[str, Decimal], other: Mapping[str, Decimal]) -> None:
    for name, amount in other.items():
        peak[name] = max(peak.get(name, Decimal(0)), amount)


def _amount(read: Callable[[Any], int], size: Any, name: str) -> int:
    amount: int = _checked(read, size.get(name), name)
    return max(amount, 0)


def _count(value: Any) -> int:
    count: int = _checked(quantity.whole, value, 'resource')
    return min(max(count, 0), _MAX)


def _checked(read: Callable[[Any], Any], value: Any, name: str) -> Any:
    try:
        return read(value)
    except quantity.BadQuantity as fault:
        raise wire.WireError(f'{name}: {fault}') from None


def _down(amount: int, unit: int) -> int:
    return min(amount // unit, _MAX)


def _up(amount: Decimal, unit: int) -> int:
    whole = (amount / unit).to_integral_value(ROUND_DOWN)
    more = 1 if whole * unit < amount else 0
    return min(max(int(whole) + more, 0), _MAX)
