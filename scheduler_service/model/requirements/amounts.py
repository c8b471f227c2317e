"""Amounts of resource classes, and groups of resources, that a request asks.

The rules are those of compute services.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import msgspec

from scheduler_service.model.request_parts import Flavor, ResourceGroup
from scheduler_service.model.requirements.numa import GuestTopology
from scheduler_service.model.requirements.specs import (
    Specs,
    amount_of,
    spec_path,
)

CPUS = frozenset(('VCPU', 'PCPU'))
_KEY = re.compile(r'(resources|trait)([a-zA-Z0-9_-]{1,64})?:(.*)', re.DOTALL)
# Parts of groups that no extra spec can state.
_OF_GROUPS = ('member_of', 'in_tree', 'same_subtree')
_SCOPED = re.compile(
    '|'.join(('resources', 'trait', 'group_policy', *_OF_GROUPS))
).match
_VERDICTS = ('required', 'forbidden')
_POLICIES = ('none', 'isolate')
_NAMES = 'capital letters, digits and _ after the colon'
_NAME = re.compile(r'[A-Z0-9_]{1,255}')
# The compute service leaves out all but these and custom ones.
_CLASSES = frozenset(
    ('VCPU', 'PCPU', 'MEMORY_MB', 'DISK_GB', 'VGPU', 'VGPU_DISPLAY_HEAD',
     'PGPU', 'FPGA', 'PCI_DEVICE', 'SRIOV_NET_VF', 'MEM_ENCRYPTION_CONTEXT',
     'IPV4_ADDRESS', 'NUMA_SOCKET', 'NUMA_CORE', 'NUMA_THREAD',
     'NUMA_MEMORY_MB', 'NET_BW_EGR_KILOBIT_PER_SEC',
     'NET_BW_IGR_KILOBIT_PER_SEC', 'NET_PACKET_RATE_KILOPACKET_PER_SEC',
     'NET_PACKET_RATE_EGR_KILOPACKET_PER_SEC',
     'NET_PACKET_RATE_IGR_KILOPACKET_PER_SEC')
)  # fmt: skip


class Asked(msgspec.Struct, frozen=True):
    """What extra specs ask for.

    :ivar amounts: resource class -> amount, in no group
    :ivar traits: trait -> required or forbidden, in no group
    :ivar groups: by their suffixes
    :ivar policy: of groups: none, isolate, or not stated
    """

    amounts: dict[str, int] = {}
    traits: dict[str, str] = {}
    groups: dict[str, ResourceGroup] = {}
    policy: str = ''


_NOTHING = Asked()


def asked(specs: Specs) -> Asked:
    """Return what extra specs ask for.

    :raises InvalidRequest: a value means nothing
    """
    if not any(map(_SCOPED, specs.extra)):
        return _NOTHING
    policy = specs.word(
        spec_path('group_policy'),
        specs.extra.get('group_policy', ''),
        _POLICIES,
    )
    made = Asked({}, {}, {}, policy)
    for key, value in specs.extra.items():
        match = _KEY.fullmatch(key)
        if match is None:
            if key.startswith(_OF_GROUPS):
                specs.wrong(spec_path(key), 'it in resource_groups', value)
            continue
        kind, suffix, name = match.groups()
        problem = _problem(kind, value)
        if problem:
            specs.wrong(spec_path(key), problem, value)
            continue
        if not _NAME.fullmatch(name):
            specs.wrong(spec_path(key), _NAMES, name)
        _add(made, kind, suffix, name, value)
    return made


def _add(
    made: Asked, kind: str, suffix: str | None, name: str, value: str
) -> None:
    """Add what an extra spec asks for, to its group if it names one."""
    group = None
    if suffix is not None:
        group = made.groups.setdefault(suffix, ResourceGroup(suffix=suffix))
    if kind == 'resources':
        amounts = made.amounts if group is None else group.resources
        amounts[name] = amount_of(value) or 0
    elif group is None:
        made.traits[name] = value
    elif value == 'required':
        group.required.append(name)
    else:
        group.forbidden.append(name)


def _problem(kind: str, value: str) -> str:
    """Return what is expected of a value; empty: it means something."""
    if kind == 'trait':
        return '' if value in _VERDICTS else ' or '.join(_VERDICTS)
    return '' if amount_of(value) is not None else 'a whole number'


def known(specs: Mapping[str, str | None]) -> dict[str, str]:
    """Return extra specs with a value, of classes that compute services know.

    They leave out all others.
    """
    return {
        key: value
        for key, value in specs.items()
        if value is not None
        and (
            not key.startswith('resources')
            or (match := _KEY.fullmatch(key)) is None
            or match[3] in _CLASSES
            or match[3].startswith('CUSTOM_')
        )
    }


def of_instance(
    flavor: Flavor,
    stated: Mapping[str, int],
    grouped: Collection[str],
    guest: GuestTopology | None,
    boots_from_volume: bool,
) -> dict[str, int]:
    """Return resource class -> amount of one instance, in no group.

    :param stated: by extra specs
    :param grouped: classes of groups, not taken of the flavor as well
    """
    amounts = dict(stated)
    if CPUS.isdisjoint(amounts) and CPUS.isdisjoint(grouped):
        dedicated = guest.dedicated if guest else 0
        amounts['VCPU'] = max(0, flavor.vcpus - dedicated)
        if guest and dedicated:
            amounts['PCPU'] = dedicated + guest.isolated_emulator
    if 'MEMORY_MB' not in grouped:
        amounts.setdefault('MEMORY_MB', flavor.memory_mb)
    if 'DISK_GB' not in grouped:
        disk = -(-disk_mb(flavor, boots_from_volume) // 1024)
        amounts.setdefault('DISK_GB', disk)
    return {name: amount for name, amount in amounts.items() if amount}


def disk_mb(flavor: Flavor, boots_from_volume: bool) -> int:
    """Return root and ephemeral disk and swap together, in MB."""
    root = 0 if boots_from_volume else flavor.root_gb
    return 1024 * (root + flavor.ephemeral_gb) + flavor.swap
