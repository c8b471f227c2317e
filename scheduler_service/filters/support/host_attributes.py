"""Host attributes by name, as columns: what capabilities and queries read.

A column is an array of numbers or a :class:`DictionaryColumn`; for the
latter a predicate runs once per distinct value.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from scheduler_service.columns.dictionary import DictionaryColumn
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
_MOVING = frozenset(
    ('vcpus_used', 'free_ram_mb', 'free_disk_mb', 'disk_mb_used')
)
Column = Any


def column(table: HostTable, name: str, settings: Settings) -> Column | None:
    """Return the column of an attribute, None where hosts have no such.

    int64[n], float64[n] or a DictionaryColumn of plain values.
    """
    if name in _CODED:
        return table.coded[_CODED[name]]
    if name in _DOCUMENTS:
        return decoded(table, name)
    if name in _COUNTS:
        return table.number(name)
    return _figure(table, name, settings)


def moves(name: str) -> bool:
    """Whether an attribute moves with the load of a host."""
    return name in _COUNTS or name in _MOVING


def _figure(table: HostTable, name: str, settings: Settings) -> Column | None:
    if name in _RESOURCES:
        resource, which = _RESOURCES[name]
        return getattr(table.resources[resource], which)
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
    if name == 'service':
        return _services(table)
    return None


def _services(table: HostTable) -> DictionaryColumn:
    """Return what the service record of each host says."""
    reasons = table.coded['disabled_reason']
    rows = zip(
        table.number('enabled').tolist(), reasons.codes.tolist(), strict=True
    )
    coded = DictionaryColumn.of(rows)
    values = tuple(
        {
            'disabled': not enabled,
            'disabled_reason': reasons.values[code],
        }
        for enabled, code in coded.values
    )
    return DictionaryColumn(coded.codes, values)


def is_known(table: HostTable, name: str, settings: Settings) -> Any:
    """Return bool[n]: whether hosts have an attribute or a stat of a name."""
    if column(table, name, settings) is not None:
        return np.ones(len(table), np.bool_)
    return decoded(table, 'stats').mask_where(
        lambda stats: isinstance(stats, dict) and name in stats
    )


def as_coded(values: Column) -> DictionaryColumn:
    """Return a column as distinct values with codes."""
    if isinstance(values, DictionaryColumn):
        return values
    distinct, codes = np.unique(values, return_inverse=True)
    return DictionaryColumn(codes.astype(np.int32), tuple(distinct.tolist()))


def step(value: Any, name: str) -> Any:
    """Return a step into a value: text is read as JSON, mappings indexed.

    :raises LookupError: there is nothing under the name
    """
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError:
            raise LookupError(name) from None
    if isinstance(value, dict) and value.get(name) is not None:
        return value[name]
    raise LookupError(name)
