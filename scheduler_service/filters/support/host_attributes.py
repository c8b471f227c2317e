"""Host attributes by name, as columns.

Extra specs of capabilities and JSON queries name attributes of a host. A
column is an array of numbers, or a :class:`DictionaryColumn`, on which a
predicate runs once per distinct value.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from scheduler_service.columns.dictionary import DictionaryColumn, Mask
from scheduler_service.columns.reports import decoded
from scheduler_service.columns.table import HostTable
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
_CODED = {
    'host': 'host',
    'nodename': 'node',
    'hypervisor_hostname': 'node',
    'uuid': 'uuid',
    'hypervisor_type': 'hypervisor_type',
    'hypervisor_version': 'hypervisor_version',
    'host_ip': 'host_ip',
    'cell_uuid': 'cell_uuid',
}
_DOCUMENTS = frozenset(
    (
        'cpu_info',
        'supported_instances',
        'stats',
        'metrics',
        'numa_topology',
        'pci_device_pools',
    )
)
_COUNTS = frozenset(('num_instances', 'num_io_ops', 'failed_builds'))
_LOAD = frozenset(
    ('vcpus_used', 'free_ram_mb', 'free_disk_mb', 'disk_mb_used')
)
Column = Any


def follows_load(name: str) -> bool:
    """Say whether an attribute changes with the load of a host."""
    return name in _COUNTS or name in _LOAD


def column(table: HostTable, name: str, settings: Settings) -> Column | None:
    """Return the column of an attribute, None where hosts have no such one.

    int64[n], float64[n] or a DictionaryColumn of plain values.
    """
    if name in _CODED:
        return table.coded[_CODED[name]]
    if name in _DOCUMENTS:
        return decoded(table, name)
    if name in _COUNTS:
        return table.number(name)
    if name == 'service':
        return _services(table)
    return _numbers(table, name, settings)


def _numbers(table: HostTable, name: str, settings: Settings) -> Column | None:
    """Return int64[n] or float64[n] of capacity and use, None if unknown."""
    if name in _RESOURCES:
        resource, field = _RESOURCES[name]
        return getattr(table.resources[resource], field)
    if name in _RATIOS:
        resource = _RATIOS[name]
        stated = np.nan_to_num(table.resources[resource].ratio, nan=0.0)
        default = settings.default_ratio(resource)
        return np.where(stated == 0.0, default, stated)
    if name == 'free_ram_mb':
        ram = table.resources['MEMORY_MB']
        return ram.total - ram.used
    if name == 'free_disk_mb':
        return table.free_disk_mb().astype(np.int64)
    if name == 'disk_mb_used':
        return table.resources['DISK_GB'].used * 1024
    return None


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


def as_dictionary_column(values: Column) -> DictionaryColumn:
    """Return a column of either kind in dictionary encoding."""
    if isinstance(values, DictionaryColumn):
        return values
    distinct, codes = np.unique(values, return_inverse=True)
    return DictionaryColumn(codes.astype(np.int32), tuple(distinct.tolist()))


def value_at(value: Any, key: str) -> Any:
    """Return what a mapping has under *key*; text is first parsed as JSON.

    :raises LookupError: there is nothing under the key
    """
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError:
            raise LookupError(key) from None
    if isinstance(value, dict) and value.get(key) is not None:
        return value[key]
    raise LookupError(key)
