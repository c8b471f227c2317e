"""What filtering and weighing costs at least: plain NumPy, nothing else.

Seven masks, each one operation over a whole column and ANDed in place:

1. ``enabled``, bool
2. ``up``, bool
3. ``zone == wanted``, int64 codes
4. ``free_memory_mb >= needed``, float64
5. ``free_vcpus >= needed``, float64
6. ``free_disk_mb >= needed``, float64
7. ``io_operations < 8``, int64

Then four weights of the rows that passed, float64: free memory, free vCPUs,
free disk and the hypervisor's version. Of each, the rows are taken out of the
column, multiplied in place so that the largest is 1, and added up; the lower
bound is 0, as it is for the default weighers of capacity. The row of the
largest sum is the answer.

The columns of what is free exist already. Masks, weights and sums are
written into arrays that are kept from one pass to the next; only the row
numbers of those that passed are allocated anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from scheduler_service.model import Inventory

_MOST_IO_OPERATIONS = 8


class Floor:
    """The columns of an inventory, and one pass over them.

    The allocation ratios are the default ones: vCPUs 16, memory 1.5, disk 1.

    :param zone: availability zone that is requested
    :param flavor: with ``vcpus``, ``memory_mb`` and ``root_gb``

    :ivar passed: how many hosts passed the masks of the last run
    :ivar best: row of the best of them
    """

    def __init__(
        self, inventory: Inventory, zone: str, flavor: dict[str, Any]
    ) -> None:
        hosts = inventory.hosts
        count = len(hosts)
        self.passed = 0
        self.best = -1
        self._enabled = np.array([host.status == 'enabled' for host in hosts])
        self._up = np.array([host.state == 'up' for host in hosts])
        zones: dict[str, str] = {
            host: aggregate.metadata['availability_zone']
            for aggregate in inventory.aggregates
            for host in aggregate.hosts
        }
        names = sorted(set(zones.values()))
        code = {name: number for number, name in enumerate(names)}
        self._zone = np.array([code[zones[h.host]] for h in hosts], np.int64)
        self._zone_code = code[zone]
        self._free_memory = np.array(
            [host.memory_mb * 1.5 - host.memory_mb_used for host in hosts]
        )
        self._free_vcpus = np.array(
            [host.vcpus * 16.0 - host.vcpus_used for host in hosts]
        )
        self._free_disk = np.array(
            [(host.local_gb - host.local_gb_used) * 1024.0 for host in hosts]
        )
        self._io_operations = np.array([h.num_io_ops for h in hosts], np.int64)
        version = np.array([float(h.hypervisor_version or 0) for h in hosts])
        self._weights = (
            self._free_memory,
            self._free_vcpus,
            self._free_disk,
            version,
        )
        self._needed = (
            float(flavor['memory_mb']),
            float(flavor['vcpus']),
            flavor['root_gb'] * 1024.0,
        )
        self._mask = np.empty(count, np.bool_)
        self._buffer = np.empty(count, np.bool_)
        self._values = np.empty(count)
        self._totals = np.empty(count)

    def run(self) -> None:
        """Filter and weigh all hosts once."""
        mask, buffer = self._mask, self._buffer
        memory_mb, vcpus, disk_mb = self._needed
        np.logical_and(self._enabled, self._up, out=mask)
        mask &= np.equal(self._zone, self._zone_code, out=buffer)
        mask &= np.greater_equal(self._free_memory, memory_mb, out=buffer)
        mask &= np.greater_equal(self._free_vcpus, vcpus, out=buffer)
        mask &= np.greater_equal(self._free_disk, disk_mb, out=buffer)
        mask &= np.less(self._io_operations, _MOST_IO_OPERATIONS, out=buffer)
        rows = np.flatnonzero(mask)
        values, totals = self._values[: len(rows)], self._totals[: len(rows)]
        first, *others = self._weights
        # In the mode 'clip' NumPy writes straight into the array.
        np.take(first, rows, out=totals, mode='clip')
        totals *= 1.0 / totals.max()
        for column in others:
            np.take(column, rows, out=values, mode='clip')
            values *= 1.0 / values.max()
            totals += values
        self.passed = len(rows)
        self.best = int(rows[totals.argmax()])
