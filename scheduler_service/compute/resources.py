"""What one instance takes of each resource class, as compute services count.

Stateless; any thread may call it.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from scheduler_service.compute import parts, wire

_HYPERTHREADS = 'HW_CPU_HYPERTHREADING'
_THREADS = {'isolate': 'forbidden', 'require': 'required'}
_GROUPED = re.compile(r'^(resources|trait)[a-zA-Z0-9_-]+:')


def check(specs: dict[str, str]) -> None:
    """Refuse extra specs for numbered groups of resources.

    :raises InvalidRequest: with the name of the first
    """
    for key in sorted(specs):
        if _GROUPED.match(key):
            parts.refuse(
                f'flavor.extra_specs.{key}', 'groups of resources are'
            )


def amounts(
    spec: wire.RequestSpec, specs: dict[str, str], offered: Collection[str]
) -> dict[str, int]:
    """Return resource class -> amount of a request.

    :param specs: extra specs
    :param offered: resource classes that some host offers
    :raises InvalidRequest: an extra spec has no amount
    """
    flavor = spec.flavor
    stated = _stated(specs)
    found = dict(stated)
    if 'VCPU' not in stated and 'PCPU' not in stated:
        found.update(_cpus(spec, offered))
    found.setdefault('MEMORY_MB', flavor.memory_mb)
    disk = flavor.ephemeral_gb + -(-flavor.swap // 1024)
    if not spec.is_bfv:
        disk += flavor.root_gb
    found.setdefault('DISK_GB', disk)
    return {name: amount for name, amount in found.items() if amount}


def traits(spec: wire.RequestSpec, offered: Collection[str]) -> dict[str, str]:
    """Return whether dedicated CPUs want hosts with hyperthreads, or none."""
    topology = spec.numa_topology
    if topology is None or 'PCPU' not in offered:
        return {}
    policies = {
        cell.cpu_thread_policy
        for cell in topology.cells
        if parts.dedicated_cpus(cell)
    }
    wanted = [
        verdict for policy, verdict in _THREADS.items() if policy in policies
    ]
    return {_HYPERTHREADS: wanted[0]} if wanted else {}


def _cpus(spec: wire.RequestSpec, offered: Collection[str]) -> dict[str, int]:
    """Return shared and dedicated CPUs.

    Where no host offers dedicated ones as a class of their own, all count as
    VCPU.
    """
    topology = spec.numa_topology
    total = spec.flavor.vcpus
    if topology is None or 'PCPU' not in offered:
        return {'VCPU': total}
    dedicated = sum(parts.dedicated_cpus(cell) for cell in topology.cells)
    if not dedicated:
        return {'VCPU': total}
    extra = topology.emulator_threads_policy == 'isolate'
    return {'VCPU': max(0, total - dedicated), 'PCPU': dedicated + extra}


def _stated(specs: dict[str, str]) -> dict[str, int]:
    """Return the amounts of ``resources:CLASS``; others are ignored."""
    found = {}
    for key, value in specs.items():
        scope, _, name = key.partition(':')
        if scope == 'resources' and name:
            text = value.strip()
            if text.isascii() and text.isdigit() and len(text) <= 15:
                found[name] = int(text)
    return found
