"""A host beside the best one for a request: verdicts, amounts and weights.

Called by any thread, on a table of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from scheduler_service.columns import HostTable
from scheduler_service.columns.dictionary import Mask
from scheduler_service.filters.base import HostFilter
from scheduler_service.model import Request
from scheduler_service.pipeline import explain
from scheduler_service.pipeline.filtering import FilterResult
from scheduler_service.pipeline.hosts import HostPipeline
from scheduler_service.pipeline.selection import Bonuses
from scheduler_service.pipeline.weighing import Ranking


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
