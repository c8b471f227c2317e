"""Checks entries of an inventory document beyond the types of their fields.

For documents that operators write; what daemons are told by hosts and other
services is taken as it is. Stateless; any thread may call any function.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from scheduler_service.model.inventory import (
    Aggregate,
    Host,
    Instance,
)
from scheduler_service.model.parse_errors import join, shown

_CONTROL = re.compile(r'[\x00-\x1f\x7f-\x9f\u2028\u2029]')
# Fields with values of any kind, which the types do not look into.
_OPEN: Mapping[type, tuple[str, ...]] = {
    Host: ('cpu_info', 'stats', 'pci_device_pools', 'numa_topology'),
    Instance: ('image_meta', 'flavor'),
}


def faults(entity: Any, place: str) -> Iterator[str]:
    """Yield a sentence for each thing that is wrong with an entry.

    :param entity: a part of an inventory; of others nothing is known
    :param place: path of the entry
    """
    if isinstance(entity, Host | Instance):
        for field in ('host', 'hypervisor_hostname'):
            name = getattr(entity, field)
            # By default the second is the first.
            if field == 'host' or name != entity.host:
                yield from _of_name(name, join(place, field))
        for field in _OPEN[type(entity)]:
            yield from _not_finite(getattr(entity, field), join(place, field))
    if isinstance(entity, Aggregate):
        for index, host in enumerate(entity.hosts):
            yield from _of_name(host, f'{place}.hosts[{index}]')


def _of_name(name: str, place: str) -> Iterator[str]:
    # It would change the lines of logs and lists that it is written in.
    if _CONTROL.search(name):
        yield (
            f'{place}: expected a name without control characters, got '
            f'{shown(name)}'
        )


def _not_finite(value: Any, place: str) -> Iterator[str]:
    """Yield a sentence for each number that JSON cannot say."""
    try:
        # Nearly all values are fine, and this is quicker than to look at each.
        json.dumps(value, allow_nan=False, default=str, skipkeys=True)
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
