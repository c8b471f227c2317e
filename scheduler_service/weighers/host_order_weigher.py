"""The weigher HostOrderWeigher."""

from __future__ import annotations

import numpy as np

from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.load import Formula
from scheduler_service.columns.table import HostTable
from scheduler_service.settings import Settings
from scheduler_service.weighers.base import ColumnWeigher

# A kind of host is rare if it has less than this share of all hosts.
_RARE = 0.05


class HostOrderWeigher(ColumnWeigher):
    """Prefers used hosts to empty ones, and opens empty ones in an order.

    A host with instances has the weight 1. An empty host has less, the less
    the later it is to be opened: first by the number ``host_order`` in the
    metadata of its aggregates, lowest first, 0 where there is none; then rare
    kinds last; then by vCPUs and by memory, largest first. Hosts are of one
    kind if they have as many vCPUs, and as many GiB of memory for each; a
    kind is rare if less than 5 % of all hosts are of it. If aggregates have
    several numbers, the smallest counts.
    """

    multiplier_option = 'host_order_weight_multiplier'
    minval = 0.0
    maxval = 1.0

    def column(self, table: HostTable, settings: Settings) -> Floats:

        def make() -> Formula:
            when_empty = _when_empty(table)
            instances = table.number('num_instances')
            return lambda rows: np.where(
                instances[rows] > 0, 1.0, when_empty[rows]
            )

        return table.load_column(self.name, 'num_instances', make)


def _when_empty(table: HostTable) -> Floats:
    """Return the weights of hosts without instances, inside 0 and 1."""
    numbers = table.least_stated('host_order', 0.0, float)
    if numbers is None:
        numbers = np.zeros(len(table))
    vcpus = table.resources['VCPU'].total
    memory_gb = np.rint(table.resources['MEMORY_MB'].total / 1024)
    kinds = np.stack([vcpus, np.rint(memory_gb / np.maximum(vcpus, 1))])
    _, kind, hosts = np.unique(
        kinds, axis=1, return_inverse=True, return_counts=True
    )
    is_rare = hosts[kind.ravel()] < _RARE * len(table)
    places, place = np.unique(
        np.stack([numbers, is_rare, -vcpus, -memory_gb]),
        axis=1,
        return_inverse=True,
    )
    count = places.shape[1]
    weights: Floats = (count - place.ravel()) / (count + 1)
    return weights
