"""One host as the filters written for one host at a time see it."""

from __future__ import annotations

from typing import Any

from scheduler_service.columns.table import HostTable


class HostState:
    """One host, with the attribute names that custom filters expect.

    Read-only: built anew for each host that such a filter looks at.
    """

    __slots__ = ('_row', '_table')

    def __init__(self, table: HostTable, row: int) -> None:
        self._table = table
        self._row = row

    def __getattr__(self, name: str) -> Any:
        table, row = self._table, self._row
        if name in table.coded:
            return table.coded[name].at(row)
        if name in table.numbers:
            return table.numbers[name][row].item()
        if name in _FIGURES:
            resource, column = _FIGURES[name]
            return int(getattr(table.resources[resource], column)[row])
        raise AttributeError(name)

    @property
    def nodename(self) -> str:
        """The node's name."""
        return self._table.node_at(self._row)

    hypervisor_hostname = nodename

    @property
    def free_ram_mb(self) -> int:
        """Memory not used, MB; may be negative."""
        ram = self._table.resources['MEMORY_MB']
        return int(ram.total[self._row] - ram.used[self._row])

    @property
    def free_disk_mb(self) -> int:
        """Disk not used, MB; may be negative."""
        return int(self._table.free_disk_mb()[self._row])

    @property
    def disk_mb_used(self) -> int:
        """Disk used, MB."""
        return int(self._table.resources['DISK_GB'].used[self._row]) * 1024

    @property
    def traits(self) -> frozenset[str]:
        """Names of the host's traits."""
        found: frozenset[str] = self._table.coded['trait_set'].at(self._row)
        return found

    @property
    def aggregates(self) -> list[Any]:
        """Aggregates that the host is in, documents of the inventory."""
        ids = self._table.coded['aggregate_set'].at(self._row)
        return [self._table.topology.aggregates[one] for one in sorted(ids)]

    @property
    def instances(self) -> dict[str, Any]:
        """Instances on the service host, by uuid."""
        found = self._table.instances.on_host(self.host)
        return {one.uuid: one for one in found}


_FIGURES = {
    'vcpus_total': ('VCPU', 'total'),
    'vcpus_used': ('VCPU', 'used'),
    'total_usable_ram_mb': ('MEMORY_MB', 'total'),
    'memory_mb_used': ('MEMORY_MB', 'used'),
    'total_usable_disk_gb': ('DISK_GB', 'total'),
    'local_gb_used': ('DISK_GB', 'used'),
}
