"""Weighers on what hosts report, but for their load."""

from __future__ import annotations

import abc
import math
from typing import Any

import numpy as np

from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.table import HostTable, decoded
from scheduler_service.columns.topology import Key
from scheduler_service.model import Request
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import Weigher


class HostWeigher(Weigher, abc.ABC):
    """Base of weighers whose weights change only when hosts do."""

    @abc.abstractmethod
    def reported(self, table: HostTable) -> Floats:
        """Return raw weights of all hosts, float64[n]."""

    def weights(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Floats:
        return self.reported(table)

    def weight_key(
        self, table: HostTable, request: Request, settings: Settings
    ) -> Key | None:
        return ()


class BuildFailureWeigher(HostWeigher):
    """Avoids hosts with failed builds.

    Failures are normalised like any weight, so the host with the most of
    them loses the whole multiplier, however few they are.
    """

    multiplier_option = 'build_failure_weight_multiplier'
    sign = -1.0

    def reported(self, table: HostTable) -> Floats:
        return table.number('failed_builds') * 1.0


class HypervisorVersionWeigher(HostWeigher):
    """Prefers hosts with newer hypervisors."""

    multiplier_option = 'hypervisor_version_weight_multiplier'

    def reported(self, table: HostTable) -> Floats:
        """Return the version as a number, 0 where a host reports none."""
        versions = table.coded['hypervisor_version']
        by_value = np.array(
            [version or 0 for version in versions.values], np.float64
        )
        return versions.expand(by_value)


_MAX_WEIGHT = 100.0
_MAX_DEVICES = 99.0


class PCIWeigher(HostWeigher):
    """Prefers hosts with fewer free PCI devices.

    That keeps hosts with devices free for the requests that need them. The
    weight is 100 less the number of free devices, of which 99 count at most.
    A host whose pools cannot be read gets the worst weight.
    """

    multiplier_option = 'pci_weight_multiplier'

    def reported(self, table: HostTable) -> Floats:
        """Return 100 less the free devices, 1 to 100, or NaN."""
        pools = decoded(table, 'pci_device_pools')
        free = np.array(
            [_free_devices(value) for value in pools.values], np.float64
        )
        by_value = _MAX_WEIGHT - np.minimum(free, _MAX_DEVICES)
        return pools.expand(by_value)


def _free_devices(pools: Any) -> float:
    """Return how many devices a host's pools have, NaN if that is unknown."""
    try:
        return float(sum(int(pool.get('count') or 0) for pool in pools or ()))
    except (ArithmeticError, AttributeError, TypeError, ValueError):
        return math.nan
