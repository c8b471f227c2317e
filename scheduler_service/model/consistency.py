"""Checks entries of an inventory document beyond the types of their fields.

For documents that operators write; what daemons are told by hosts and other
services is taken as it is. Stateless; any thread may call any function.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from scheduler_service.model.inventory import Host, Instance
from scheduler_service.model.parse_errors import join, shown

# Fields with values of any kind, which the types do not look into.
_OPEN: Mapping[type, tuple[str, ...]] = {
    Host: ('cpu_info', 'stats', 'pci_device_pools', 'numa_topology'),
    Instance: ('image_meta', 'flavor'),
}
# Made once: json.dumps makes one for each value.
_STRICT = json.JSONEncoder(allow_nan=False, default=str, skipkeys=True)


def faults(entity: Any, place: str) -> Iterator[str]:
    """Yield a sentence for each thing that is wrong with an entry.

    :param entity: a part of an inventory; of others nothing is known
    :param place: path of the entry
    """
    for field in _OPEN.get(type(entity), ()):
        if value := getattr(entity, field):
            yield from _not_finite(value, join(place, field))


def _not_finite(value: Any, place: str) -> Iterator[str]:
    """Yield a sentence for each number that JSON cannot say."""
    try:
        # Nearly all values are fine, and this is quicker than to look at each.
        _STRICT.encode(value)
    except ValueError:
        yield from _each_not_finite(value, place)


def _each_not_finite(value: Any, place: str) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield f'{place}: expected a finite number, got {shown(value)}'
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _each_not_finite(item, join(place, str(key)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _each_not_finite(item, f'{place}[{index}]')
