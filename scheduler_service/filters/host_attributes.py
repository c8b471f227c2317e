"""Host attributes by name, as columns.

Extra specs of capabilities and JSON queries name attributes of a host. A
column is an array of numbers, or a :class:`DictionaryColumn`, on which a
predicate runs once per distinct value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from scheduler_service.columns.dictionary import DictionaryColumn, Mask
from scheduler_service.columns.table import HostTable, decoded
from scheduler_service.model import (
    COUNT_FIELDS,
    ENCODED_FIELDS,
    NESTED_FIELDS,
)
from scheduler_service.settings import Settings

_RESOURCES = {
    'vcpus_total': ('VCPU', 'total'),
    'vcpus_used': ('VCPU', 'used'),
    'total_usable_ram_mb': ('MEMORY_MB', 'total'),
    'total_usable_disk_gb': ('DISK_GB', 'total'),
}
_RATIOS = {
    'cpu_allocation_ratio': 'VCPU',
    'ram_allocation_ratio': 'MEMORY_MB',
    'disk_allocation_ratio': 'DISK_GB',
}
# Attribute -> the dictionary-encoded column that has it.
_CODED = {
    'host': 'host',
    'nodename': 'node',
    'hypervisor_hostname': 'node',
    'uuid': 'uuid',
    # The reason is a part of the attribute ``service``.
    **{name: name for name in ENCODED_FIELDS if name != 'disabled_reason'},
}
_COUNTS = frozenset(('num_instances', *COUNT_FIELDS))
Column = Any


def follows_load(name: str) -> bool:
    """Return whether an attribute changes with the load of a host."""
    return name in _COUNTS or name in _LOAD or name == 'vcpus_used'


def is_free_form(name: str) -> bool:
    """Return whether hosts may report any value as an attribute, or none."""
    return name in _CODED or name in NESTED_FIELDS or name == 'service'


def column(table: HostTable, name: str, settings: Settings) -> Column | None:
    """Return the column of an attribute; None: hosts have no such attribute.

    int64[n], float64[n] or a DictionaryColumn of plain values.
    """
    if name in _CODED:
        return table.coded[_CODED[name]]
    if name in NESTED_FIELDS:
        return decoded(table, name)
    if name in _COUNTS:
        return table.number(name)
    if name == 'service':
        return table.topology.memoize(
            ('attribute', name), lambda: _services(table)
        )
    if name in _RESOURCES:
        resource, field = _RESOURCES[name]
        return getattr(table.resources[resource], field)
    if name in _RATIOS:
        encoded = ratios(table, name, settings)
        return encoded.expand(np.array(encoded.values))
    if name in _LOAD:
        return _LOAD[name](table)
    return None


def ratios(
    table: HostTable, name: str, settings: Settings
) -> DictionaryColumn:
    """Return the column of ``cpu_allocation_ratio`` or another ratio."""
    resource = _RATIOS[name]
    default = settings.default_ratio(resource)

    return table.topology.memoize(
        ('attribute', name, default),
        lambda: _encode(table.resources[resource].ratios(default)),
    )


# Attributes that are computed: whole numbers.
_LOAD: dict[str, Callable[[HostTable], Column]] = {
    'free_ram_mb': lambda table: table.unused('MEMORY_MB'),
    'free_disk_mb': lambda table: table.free_disk_mb(),
    'disk_mb_used': lambda table: table.resources['DISK_GB'].used * 1024,
}


def _services(table: HostTable) -> DictionaryColumn:
    """Return the service record of each host, a mapping."""
    reasons = table.coded['disabled_reason']
    rows = zip(
        table.number('enabled').tolist(), reasons.codes.tolist(), strict=True
    )
    encoded = DictionaryColumn.of(rows)
    services = tuple(
        {
            'disabled': not enabled,
            'disabled_reason': reasons.values[code],
        }
        for enabled, code in encoded.values
    )
    return DictionaryColumn(encoded.codes, services)


def has_attribute(table: HostTable, name: str, settings: Settings) -> Mask:
    """Return bool[n]: whether each host has an attribute or stat."""
    if column(table, name, settings) is not None:
        return np.ones(len(table), np.bool_)
    return decoded(table, 'stats').mask_where(
        lambda stats: isinstance(stats, dict) and name in stats
    )


def dictionary_column(
    table: HostTable, name: str, settings: Settings
) -> DictionaryColumn | None:
    """Return the column of an attribute in dictionary encoding.

    None where hosts have no such attribute.
    """
    if name in _RATIOS:
        return ratios(table, name, settings)
    values = column(table, name, settings)
    if values is None or isinstance(values, DictionaryColumn):
        return values
    return _encode(values.astype(np.int64) if name in _LOAD else values)


def _encode(values: Any) -> DictionaryColumn:
    distinct, codes = np.unique(values, return_inverse=True)
    return DictionaryColumn(codes.astype(np.int32), tuple(distinct.tolist()))


def value_at(value: Any, key: str) -> Any:
    """Return the value of a mapping under *key*; text is parsed as JSON.

    :raises LookupError: there is nothing under the key
    """
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            raise LookupError(key) from None
    if isinstance(value, dict) and value.get(key) is not None:
        return value[key]
    raise LookupError(key)
