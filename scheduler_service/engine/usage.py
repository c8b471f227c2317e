"""How full the hosts are, by zone and resource class. Stateless.

Any thread may ask: it reads arrays that the engine's thread writes to, so
that sums may be a claim behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.columns.table import ResourceColumns
from scheduler_service.engine import zones
from scheduler_service.settings import Settings

# So many zones and classes are told apart, those with most hosts; the others
# are summed up, so that what reads this stays small. Who asks by a command
# wants them all.
MOST_ZONES = 50
MOST_CLASSES = 30
OTHERS = 'others'


class Usage(NamedTuple):
    """Sums over the hosts of a zone, in the unit of the resource class.

    :ivar capacity: (total - reserved) x allocation ratio
    :ivar used: by claims, and by what hosts reported
    :ivar free: what is left of the capacity of hosts that are up and enabled
    """

    zone: str
    resource_class: str
    capacity: float
    used: float
    free: float


def by_zone(
    snapshot: Snapshot | None, settings: Settings, whole: bool = False
) -> list[Usage]:
    """Return how full each zone is, for each resource class.

    :param whole: tell all zones and classes apart, however many there are
    """
    if snapshot is None or not len(snapshot.hosts):
        return []
    table = snapshot.hosts
    names, codes = zones.places(table, settings.default_availability_zone)
    classes = [(name, name, one) for name, one in table.resources.items()]
    if not whole:
        names, codes = _largest_zones(names, codes)
        classes = _largest_classes(table.resources)
    available = table.numbers['enabled'] & table.numbers['up']
    found: dict[tuple[str, str], Usage] = {}
    for label, name, columns in classes:
        sums = _sums(columns, settings.default_ratio(name), available, codes,
                     len(names))  # fmt: skip
        for zone, (capacity, used, free) in zip(names, sums, strict=True):
            before = found.get((zone, label), Usage(zone, label, 0, 0, 0))
            found[zone, label] = Usage(
                zone,
                label,
                before.capacity + capacity,
                before.used + used,
                before.free + free,
            )
    return [one for one in found.values() if one.capacity or one.used]


def _largest_zones(
    names: list[str], codes: npt.NDArray[np.intp]
) -> tuple[list[str], npt.NDArray[np.intp]]:
    """Return the same with small zones as one, if there are too many."""
    if len(names) <= MOST_ZONES:
        return names, codes
    hosts = np.bincount(codes, minlength=len(names))
    largest = np.argsort(-hosts, kind='stable')[:MOST_ZONES]
    place = np.full(len(names), MOST_ZONES, np.intp)
    place[largest] = np.arange(MOST_ZONES)
    return [*(names[n] for n in largest), OTHERS], place[codes]


def _largest_classes(
    resources: Mapping[str, ResourceColumns],
) -> list[tuple[str, str, ResourceColumns]]:
    """Return (label, name, columns) of each resource class.

    If there are too many, those that few hosts have get the same label.
    """
    if len(resources) <= MOST_CLASSES:
        return [(name, name, one) for name, one in resources.items()]
    hosts = {
        name: np.count_nonzero(one.total >= 0)
        for name, one in resources.items()
    }
    largest = sorted(resources, key=lambda name: (-hosts[name], name))
    told = set(largest[:MOST_CLASSES])
    return [
        (name if name in told else OTHERS, name, resources[name])
        for name in largest
    ]


def _sums(
    columns: ResourceColumns,
    default_ratio: float,
    available: npt.NDArray[np.bool_],
    codes: npt.NDArray[np.intp],
    zones: int,
) -> list[tuple[float, float, float]]:
    """Return (capacity, used, free) of each zone."""
    stated = np.nan_to_num(columns.ratio, nan=0.0)
    ratio = np.where(stated == 0.0, default_ratio, stated)
    offered = columns.total >= 0
    capacity = np.where(offered, columns.total - columns.reserved, 0) * ratio
    used = np.where(offered, columns.used, 0)
    free = np.maximum(capacity - used, 0) * available

    def by_zone(weights: npt.NDArray[np.float64]) -> list[float]:
        sums = np.bincount(codes, weights, zones)
        return [float(value) for value in sums]

    return list(
        zip(by_zone(capacity), by_zone(used * 1.0), by_zone(free), strict=True)
    )
