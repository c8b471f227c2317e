"""A host beside the best one for a request, and what would let hosts pass.

Called by any thread, on a table of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from scheduler_service import errors
from scheduler_service.columns import HostTable
from scheduler_service.columns.dictionary import Mask
from scheduler_service.filters.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.pipeline import explain
from scheduler_service.pipeline.filtering import FilterResult
from scheduler_service.pipeline.hosts import HostPipeline
from scheduler_service.pipeline.selection import Bonuses
from scheduler_service.pipeline.weighing import Ranking

# Most that are returned.
MOST = 5
# Fields of the flavor that may be smaller.
_SIZES = 'vcpus', 'memory_mb', 'root_gb', 'ephemeral_gb', 'swap'
_RESOURCES = 'resources'
# What it counts to leave something out, beside the share of an amount.
_LEFT_OUT = 0.5


class _Left(HostFilter):
    name = 'extenders and placement'

    def reason(self, *_: Any) -> str:
        return 'Extenders or placement took it out'


class Bounded(HostPipeline):
    """A pipeline for which extenders and placement left some hosts alone.

    :param left: store id -> what they added to the weight
    """

    def __init__(
        self, pipeline: HostPipeline, left: Mapping[int, float]
    ) -> None:
        super().__init__(*pipeline._how)
        self._left = left

    def _mask(self, table: HostTable) -> Mask:
        return np.isin(table.ids, np.array([*self._left], np.int64))

    def filter_hosts(self, table: HostTable, request: Request) -> Mask:
        return super().filter_hosts(table, request) & self._mask(table)

    def filter_results(
        self, table: HostTable, request: Request
    ) -> list[FilterResult]:
        left = FilterResult(_Left(), self._mask(table))
        return [*super().filter_results(table, request), left]

    def weigh_hosts(
        self, table: HostTable, mask: Mask, request: Request
    ) -> Ranking | None:
        ranking = super().weigh_hosts(table, mask, request)
        if ranking is not None:
            ranking.add(table.ids, self._left)
        return ranking


def bounded(
    pipeline: HostPipeline, request: Request, bounds: Bonuses | None
) -> HostPipeline:
    """Return a pipeline with the hosts that were left for an instance.

    :param request: names the instance that is placed
    """
    if not bounds:
        return pipeline
    uuids, placing = request.instance_uuids, request.placing
    at = uuids.index(placing) if placing in uuids else 0
    return Bounded(pipeline, bounds[min(at, len(bounds) - 1)])


class Standing(NamedTuple):
    """Where a host stands among all that pass.

    :ivar ahead: how many weigh more; None: it does not pass
    :ivar best: row of the host that comes first; None: no host passes
    """

    ahead: int | None
    best: int | None


def standing(
    pipeline: HostPipeline, table: HostTable, request: Request, row: int | None
) -> Standing:
    """Return where the host of a row stands; None: no host, so nowhere."""
    best = None
    for form, mask in pipeline.masks(table, request):
        ranking = pipeline.weigh_hosts(table, mask, form)
        if ranking is None:
            continue
        best = ranking.best(1)[0] if best is None else best
        if row is not None and mask[row]:
            own = ranking.totals[np.searchsorted(ranking.rows, row)]
            ahead = int(np.count_nonzero(ranking.totals > own))
            return Standing(ahead, ranking.best(1)[0])
    return Standing(None, best)


def of_host(
    pipeline: HostPipeline,
    table: HostTable,
    request: Request,
    host: str,
    taken: int | None = None,
) -> list[dict[str, Any]]:
    """Return for each node of a host what is said of it.

    Of the first form of the request with which any host passes.

    :param taken: row of the host that was taken; None: the best one is
    :return: ``filters``, ``amounts`` and ``weights``, which are absent where
        no host passes
    :raises HostNotFound: there is no such host
    :raises FilterFault: a filter or weigher failed
    """
    judged = [*pipeline.masks(table, request)]
    form, mask = next((one for one in judged if one[1].any()), judged[0])
    subject = explain.Subject(table, form, pipeline.settings)
    results = pipeline.filter_results(table, form)
    nodes = explain.host_report(results, subject, host)
    rows = table.rows_of_host(host).tolist()
    for node, row in zip(nodes, rows, strict=True):
        node['amounts'] = _amounts(pipeline, table, form, row)
        if mask.any():
            among = mask | table.mask_of([row])
            node['weights'] = _weights(
                pipeline, table, form, (mask, among), row, taken
            )
    return nodes


def _amounts(
    pipeline: HostPipeline, table: HostTable, request: Request, row: int
) -> list[dict[str, Any]]:
    """Return what is asked of each resource class, and what is free."""
    amounts = []
    for name, asked in request.resources.items():
        free = -np.inf
        if name in table.resources:
            free = pipeline.room(table, row, name)
        # Instances take whole amounts alone.
        known = math.floor(free) if np.isfinite(free) else None
        amounts.append(
            {
                'resource': name,
                'asked': asked,
                'free': known,
                'lacks': None if known is None else max(asked - known, 0),
            }
        )
    return amounts


def fittest(
    pipeline: HostPipeline, table: HostTable, request: Request
) -> dict[str, Any] | None:
    """Return the host that has most left of what a request asks for.

    Among those that are as the request names them, by the resource class of
    which each has the least share.

    :return: ``host``, ``node`` and ``amounts``; None: there is none
    """
    form = next(iter(request.forms(table.resources)))
    share = np.full(len(table), np.inf)
    for each, mask in pipeline.filter_results(table, form):
        if each.by_name:
            share[~mask] = -np.inf
    for name, asked in form.resources.items():
        if name in table.resources:
            columns = table.resources[name]
            left = table.capacity(name, pipeline.settings) - columns.used
            share = np.minimum(share, left / asked)
    if not len(table) or share.max() == -np.inf:
        return None
    row = int(share.argmax())
    return {
        'host': table.host_at(row),
        'node': table.node_at(row),
        'amounts': _amounts(pipeline, table, form, row),
    }


def _weights(
    pipeline: HostPipeline,
    table: HostTable,
    request: Request,
    masks: tuple[Any, Any],
    row: int,
    taken: int | None,
) -> dict[str, Any]:
    """Return what weighers add to a host, and to the one that was taken.

    :param masks: bool[n] each: the hosts that pass, and with them the host
    """
    ranking = pipeline.weigh_hosts(table, masks[1], request)
    assert ranking is not None
    totals = ranking.totals
    own = int(np.searchsorted(ranking.rows, row))
    passing = masks[0][ranking.rows]
    best = int(np.where(passing, totals, -np.inf).argmax())
    if taken is not None:
        best = int(np.searchsorted(ranking.rows, taken))
    return {
        'best': table.host_at(int(ranking.rows[best])),
        'equal': int(np.count_nonzero(passing & (totals == totals[best]))) - 1,
        'weighers': [
            {
                'weigher': name,
                'raw': float(raw[own]),
                'weight': float(part[own]),
                'best_raw': float(raw[best]),
                'best_weight': float(part[best]),
            }
            for name, part, raw, *_ in ranking.parts
        ],
    }


def figures(table: HostTable, row: int) -> dict[str, Any]:
    """Return the figures of a host by name, to be compared."""
    found: dict[str, Any] = {
        name: column[row].item() for name, column in table.numbers.items()
    }
    for name, columns in table.resources.items():
        if columns.total[row] >= 0:
            found[f'{name} used'] = columns.used[row].item()
            found[f'{name} total'] = columns.total[row].item()
            found[f'{name} reserved'] = columns.reserved[row].item()
    return found


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
    for name, asked, having in _asked_amounts(request):
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


def _asked_amounts(
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
