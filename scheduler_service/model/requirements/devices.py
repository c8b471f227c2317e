"""PCI devices of a request, and the aliases that stand for devices.

Aliases and extra specs are read as compute services read them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from scheduler_service.model.problems import shown
from scheduler_service.model.request_parts import MAX_DEVICES, PciRequest
from scheduler_service.model.requirements.features import DISTANCES
from scheduler_service.model.requirements.specs import (
    Specs,
    amount_of,
    is_true,
    reading,
    refusal,
    spec_path,
)

ALIAS_SPEC = 'pci_passthrough:alias'
# Properties that a device has to have: (name, value) pairs in order.
Properties = tuple[tuple[str, str | None], ...]
_ID = re.compile(r'[0-9a-fA-F]{4}')
_TYPES = ('type-PCI', 'type-PF', 'type-VF')
_FALSE = frozenset(('0', 'f', 'false', 'off', 'n', 'no'))
# Keys of an alias that a device is not compared with.
_NOT_COMPARED = ('name', 'numa_policy', 'resource_class', 'traits')
_KEYS = frozenset(
    (*_NOT_COMPARED, 'vendor_id', 'product_id', 'device_type',
     'capability_type', 'live_migratable')
)  # fmt: skip


class DeviceRequest(NamedTuple):
    """A request for devices of one kind.

    :ivar alternatives: a device has to match any of them
    :ivar policy: how near it has to be to the NUMA cells of the instance:
        legacy, preferred, required or socket
    """

    name: str
    needed: int
    alternatives: tuple[Properties, ...]
    policy: str = 'legacy'


class Alias(NamedTuple):
    """The devices that a name stands for.

    :ivar has_ids: whether each has a vendor and a product
    :ivar by_class: whether only placement knows which devices are meant
    """

    alternatives: tuple[Properties, ...]
    policy: str
    has_ids: bool
    by_class: bool


def check_aliases(texts: tuple[str, ...]) -> None:
    """Check that each alias says which devices it stands for.

    :raises ValueError: with what is expected
    """
    for name, alias in aliases(texts).items():
        alone = len(alias.alternatives) == 1
        if not alias.has_ids and not (alias.by_class and alone):
            raise ValueError(
                'expected vendor_id and product_id, or one resource_class, '
                f'in the alias {name}'
            )


@functools.lru_cache(8)
def aliases(texts: tuple[str, ...]) -> Mapping[str, Alias]:
    """Return the aliases of ``[pci] alias`` by name.

    Several with one name are alternatives.

    :raises ValueError: one is not valid, with what is expected of it
    """
    by_name: dict[str, Alias] = {}
    for text in texts:
        try:
            stated = msgspec.json.decode(text, type=dict[str, str])
        except msgspec.MsgspecError as fault:
            raise ValueError(
                'expected a JSON object of texts, in double quotes, got '
                f'{shown(text)} ({fault})'
            ) from None
        problem = _problem(stated)
        if problem:
            raise ValueError(f'{problem}, in {shown(text)}')
        name = stated['name'].strip()
        alias = Alias(
            (_properties(stated),),
            stated.get('numa_policy', 'legacy'),
            stated.keys() >= {'vendor_id', 'product_id'},
            'resource_class' in stated,
        )
        if name in by_name:
            first = by_name[name]
            if (
                first.policy != alias.policy
                or 'device_type' not in stated
                or ('dev_type', stated['device_type'])
                not in first.alternatives[0]
            ):
                raise ValueError(
                    'expected one device_type and one numa_policy in all '
                    f'aliases of the name {name}, got {shown(text)}'
                )
            alias = first._replace(
                alternatives=first.alternatives + alias.alternatives,
                has_ids=first.has_ids and alias.has_ids,
                by_class=first.by_class and alias.by_class,
            )
        by_name[name] = alias
    return by_name


def _problem(stated: Mapping[str, str]) -> str:
    """Return what is wrong with an alias; empty: nothing."""
    unknown = sorted(stated.keys() - _KEYS)
    if unknown:
        return f'expected no key but {", ".join(sorted(_KEYS))}, got ' + (
            ', '.join(unknown)
        )
    name = stated.get('name', '')
    if not name.strip() or len(name) > 256:
        return 'expected a name of at most 256 characters'
    for key in ('vendor_id', 'product_id'):
        if key in stated and not _ID.fullmatch(stated[key]):
            return f'expected four hexadecimal digits as {key}'
    for key, allowed in (
        ('device_type', _TYPES),
        ('numa_policy', DISTANCES),
        ('capability_type', ('pci',)),
    ):
        if key in stated and stated[key] not in allowed:
            return f'expected one of {", ".join(allowed)} as {key}'
    migrates = stated.get('live_migratable', 'no').strip().lower()
    if not is_true(migrates) and migrates not in _FALSE:
        return 'expected true or false as live_migratable'
    return ''


def _properties(stated: Mapping[str, str]) -> Properties:
    """Return the properties that an alias requires of a device."""
    properties: dict[str, str | None] = {
        'dev_type' if key == 'device_type' else key: value
        for key, value in stated.items()
        if key not in _NOT_COMPARED
    }
    if 'live_migratable' in stated:
        migrates = is_true(stated['live_migratable'])
        properties['live_migratable'] = 'true' if migrates else 'false'
    return tuple(sorted(properties.items(), key=lambda pair: pair[0]))


def stated(requests: Sequence[PciRequest]) -> tuple[DeviceRequest, ...]:
    """Return the devices that a request states itself."""
    return tuple(
        DeviceRequest(
            device.name or 'devices',
            device.count,
            tuple(
                tuple(sorted(properties.items(), key=lambda pair: pair[0]))
                for properties in device.alternatives
            ),
            device.numa_policy,
        )
        for device in requests
    )


def of_aliases(
    specs: Specs, texts: tuple[str, ...]
) -> tuple[DeviceRequest, ...]:
    """Return the devices of the aliases that a flavor names.

    :param texts: of ``[pci] alias``
    :raises InvalidRequest: one is not configured, or a count is no number
    :raises ValueError: an alias is not valid
    """
    text = specs.extra.get(ALIAS_SPEC)
    if text is None:
        return ()
    place = spec_path(ALIAS_SPEC)
    policy = specs.value('pci_numa_affinity_policy', DISTANCES)
    by_name = aliases(texts)
    devices = []
    for part in text.split(','):
        name, colon, number = part.partition(':')
        with reading(place, 'NAME:COUNT, several with commas', text):
            count = amount_of(number)
            if not colon or not count or count > MAX_DEVICES:
                raise ValueError(f'no count from 1 to {MAX_DEVICES}')
        name = name.strip()
        if name not in by_name:
            raise refusal(place, 'names of [pci] alias', name)
        alias = by_name[name]
        if alias.by_class and not alias.has_ids:
            raise refusal(
                place,
                'aliases with vendor_id and product_id, since only the '
                'compute service asks for a resource_class',
                name,
            )
        devices.append(
            DeviceRequest(
                name, count or 0, alias.alternatives, policy or alias.policy
            )
        )
    return tuple(devices)
