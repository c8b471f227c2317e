"""Which single change of a refused request would find a host.

Called by any thread, on a table of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.model import Request
from scheduler_service.pipeline.hosts import HostPipeline

# Most that are returned.
MOST = 5
# Fields of the flavor that may be smaller.
_SIZES = 'vcpus', 'memory_mb', 'root_gb', 'ephemeral_gb', 'swap'
_RESOURCES = 'resources'
# What it counts to leave something out, beside the share of an amount.
_LEFT_OUT = 0.5


class Relaxation(NamedTuple):
    """A change of a request with which hosts pass.

    :ivar change: of the request, for people
    :ivar hosts: how many pass all filters then
    """

    change: str
    hosts: int


def smallest(
    pipeline: HostPipeline, table: HostTable, request: Request
) -> list[Relaxation]:
    """Return the smallest changes with which hosts pass, the smallest first.

    One at a time: without the zone, a trait, another extra spec, a hint, an
    image property or the policy of the server group, or with the nearest
    smaller amount of one kind. An amount counts by the share that is lost,
    anything that is left out as half; of equals that with most hosts is first.

    :raises FilterFault: a filter failed
    """
    found: list[tuple[float, int, str]] = []
    for condition, fields in _without(request):
        made = request.having(**fields)
        if 'instance_group' in fields:
            made.stored_groups = {}
        hosts = passing(pipeline, table, made)
        if hosts:
            found.append((_LEFT_OUT, -hosts, f'without the {condition}'))
    for name, asked, having in _amounts(request):
        most, hosts = _largest(pipeline, table, asked, having)
        if hosts:
            change = f'{name} {most:,} in place of {asked:,}'
            found.append((1 - most / asked, -hosts, change))
    return [Relaxation(each[2], -each[1]) for each in sorted(found)[:MOST]]


def passing(pipeline: HostPipeline, table: HostTable, request: Request) -> int:
    """Return how many hosts pass all filters for one instance.

    None passes for what is not valid.
    """
    try:
        masks = [mask for _, mask in pipeline.masks(table, request)]
    except errors.InvalidRequest:
        return 0
    return max(int(np.count_nonzero(mask)) for mask in masks)


def _largest(
    pipeline: HostPipeline,
    table: HostTable,
    asked: int,
    having: Callable[[int], Request],
) -> tuple[int, int]:
    """Return the largest smaller amount with which hosts pass, and how many.

    :return: 0 hosts: none passes with any
    """
    low, high = 1, asked - 1
    best = 0, 0
    # The least amount first: mostly none is small enough.
    amount = low
    while low <= high:
        hosts = passing(pipeline, table, having(amount))
        if hosts:
            best, low = (amount, hosts), amount + 1
        elif amount == 1:
            break
        else:
            high = amount - 1
        amount = (low + high + 1) // 2
    return best


def _without(request: Request) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each condition of a request, and the fields of one without it."""
    flavor, image = request.flavor, request.image
    hints = request.scheduler_hints
    if request.availability_zone:
        yield f'zone {request.availability_zone}', {'availability_zone': None}
    for key, value in flavor.extra_specs.items():
        specs = _less(flavor.extra_specs, key)
        changed = msgspec.structs.replace(flavor, extra_specs=specs)
        yield f'extra spec {key}={value}', {'flavor': changed}
    for field in ('traits', 'root_traits'):
        traits = getattr(request, field)
        for trait in traits:
            yield f'trait {trait}', {field: _less(traits, trait)}
    for key in hints:
        if key != 'group':
            yield f'hint {key}', {'scheduler_hints': _less(hints, key)}
    if image is not None:
        for key, value in image.properties.items():
            less = _less(image.properties, key)
            made = msgspec.structs.replace(image, properties=less)
            yield f'image property {key}={value}', {'image': made}
    if request.groups:
        yield (
            'policy of its server group',
            {'instance_group': None, 'scheduler_hints': _less(hints, 'group')},
        )


def _amounts(
    request: Request,
) -> Iterator[tuple[str, int, Callable[[int], Request]]]:
    """Yield what a request asks for amounts, and how to ask for another."""
    flavor, specs = request.flavor, request.flavor.extra_specs

    def of_flavor(name: str, amount: int) -> Request:
        return _with_flavor(request, **{name: amount})

    def of_spec(key: str, amount: int) -> Request:
        return _with_flavor(request, extra_specs={**specs, key: str(amount)})

    def of_class(name: str, amount: int) -> Request:
        return request.having(
            amounts={**(request.amounts or {}), name: amount}
        )

    for name in _SIZES:
        yield name, getattr(flavor, name), partial(of_flavor, name)
    for name, asked in (request.amounts or {}).items():
        yield name, asked, partial(of_class, name)
    for key, value in specs.items():
        if key.startswith(_RESOURCES) and value.isdigit():
            yield key, int(value), partial(of_spec, key)


def _with_flavor(request: Request, **fields: Any) -> Request:
    changed = msgspec.structs.replace(request.flavor, **fields)
    return request.having(flavor=changed)


def _less(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != key}
