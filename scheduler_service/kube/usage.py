"""What a pod takes of a node."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, NamedTuple

from scheduler_service import extender_wire as wire
from scheduler_service.kube import reading
from scheduler_service.model import STANDARD_CLASSES

# What a kube-scheduler counts for a container that requests nothing.
_DEFAULT_CPU = Decimal('0.1')
_DEFAULT_MEMORY = Decimal(200 * 2**20)
_MIB, _GIB = 2**20, 2**30
# Under this name each pod is counted once.
PODS = 'pods'


class Usage(NamedTuple):
    """What one pod takes.

    :ivar load: VCPU, MEMORY_MB and DISK_GB, not rounded; for comparing nodes,
        so containers that request no processor or memory count as well
    :ivar classes: of every other resource class, exactly
    """

    load: dict[str, float]
    classes: dict[str, int]

    @property
    def amounts(self) -> dict[str, float]:
        """All of it by resource class, and one pod."""
        return {**self.load, **self.classes, PODS: 1.0}


def usage_of(pod: Any, domain: str) -> Usage:
    """Return what a pod takes.

    :param pod: a v1 Pod, parsed
    :param domain: of the annotations and resources that are ours
    :raises WireError: it cannot be read
    """
    amounts = reading.pod_amounts(pod)
    cpu = amounts.get('cpu', Decimal(0))
    memory = amounts.get('memory', Decimal(0))
    for requested in _requests(pod):
        if 'cpu' not in requested:
            cpu += _DEFAULT_CPU
        if 'memory' not in requested:
            memory += _DEFAULT_MEMORY
    disk = amounts.get('ephemeral-storage', Decimal(0))
    load = {
        'VCPU': float(cpu),
        'MEMORY_MB': float(memory) / _MIB,
        'DISK_GB': float(disk) / _GIB,
    }
    if reading.has_request(pod, domain):
        classes = {
            name: amount
            for name, amount in reading.pod_request(
                pod, domain
            ).resources.items()
            if name not in STANDARD_CLASSES
        }
    else:
        classes = reading.classes_of(amounts, domain)
    return Usage(load, classes)


def _requests(pod: Any) -> list[dict[str, Any]]:
    """Return the requests of each container, with limits in their place."""
    spec = wire.field(pod, 'spec', dict) or {}
    found = []
    for container in wire.field(spec, 'containers', list) or []:
        resources = wire.field(container, 'resources', dict) or {}
        found.append(
            {
                **(wire.field(resources, 'limits', dict) or {}),
                **(wire.field(resources, 'requests', dict) or {}),
            }
        )
    return found
