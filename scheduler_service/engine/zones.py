"""Which availability zones hosts are in, for what is summed up by zone.

A host may be in several: by several aggregates, or by one whose metadata
names them with commas between. Such hosts are a place of their own, named
after all of its zones, so that no host is counted twice. Stateless.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scheduler_service.columns import HostTable

_BETWEEN = ', '


def places(
    table: HostTable, default: str
) -> tuple[list[str], npt.NDArray[np.intp]]:
    """Return the names of places, sorted, and the place of each host, int[n].

    :param default: zone of hosts whose aggregates name none
    """
    sets = table.coded['aggregate_set']
    aggregates = table.topology.aggregates
    zones = {number: one.zones for number, one in aggregates.items()}
    by_set = [
        _BETWEEN.join(sorted({zone for one in ids for zone in zones[one]}))
        or default
        for ids in sets.values
    ]
    names = sorted(set(by_set))
    index = {name: n for n, name in enumerate(names)}
    of_set = np.array([index[name] for name in by_set], np.intp)
    return names, of_set[sets.codes]


def is_in(place: str, zone: str) -> bool:
    """Whether the hosts of a place are in a zone."""
    return zone in place.split(_BETWEEN)
