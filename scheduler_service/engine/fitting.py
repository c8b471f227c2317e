"""What fits where now, and where the instances of a host could go.

For operators who ask before they act: nothing is claimed, and no extender is
asked. Called by one thread, on a snapshot that it loaded itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from scheduler_service import errors
from scheduler_service.columns import HostTable, Overlay
from scheduler_service.columns.dictionary import Floats, Ints
from scheduler_service.engine import zones
from scheduler_service.model import Request
from scheduler_service.pipeline import HostPipeline
from scheduler_service.settings import Settings


class Fit(NamedTuple):
    """How many more instances of a request a zone or a host takes.

    :ivar hosts: how many hosts pass the filters
    :ivar instances: what these have room for, each host by itself; None: any
        number, since the request asks for no resource
    :ivar ends: the resource class that is used up first; empty: the request
        asks for none
    """

    place: str
    hosts: int
    instances: int | None
    ends: str


class Move(NamedTuple):
    """Where an instance of a host could go.

    :ivar host: the service host; None: nowhere
    :ivar reason: why it can go nowhere
    """

    request: Request
    host: str | None
    node: str | None
    zone: str | None
    reason: str


def fits(
    pipeline: HostPipeline,
    table: HostTable,
    request: Request,
    default_zone: str,
    by_host: bool = False,
) -> list[Fit]:
    """Return how much of a request fits where, by zone or by host.

    :raises FilterFault: a filter failed
    """
    rows = np.flatnonzero(pipeline.filter_hosts(table, request).mask)
    room = _room(table, request, pipeline.settings, rows)
    whole = (
        np.minimum.reduce(list(room.values()))
        if room
        else np.zeros(len(rows), np.int64)
    )
    found = []
    for place, picked in _places(table, rows, default_zone, by_host):
        sums = {name: int(one[picked].sum()) for name, one in room.items()}
        ends = min(sums, key=lambda name: (sums[name], name), default='')
        instances = int(whole[picked].sum()) if request.resources else None
        found.append(Fit(place, len(picked), instances, ends))
    return found


def _room(
    table: HostTable, request: Request, settings: Settings, rows: Ints
) -> dict[str, Ints]:
    """Return for each class how many instances each of some hosts takes."""
    found = {}
    for name, amount in request.resources.items():
        if name not in table.resources:
            continue
        columns = table.resources[name]
        total = np.maximum(columns.total[rows], 1)
        free: Floats = (
            table.capacity(name, settings)[rows]
            * ((total - columns.reserved[rows]) / total)
            - columns.used[rows]
        )
        found[name] = np.maximum(free // amount, 0).astype(np.int64)
    return found


def _places(
    table: HostTable, rows: Ints, default_zone: str, by_host: bool
) -> Iterator[tuple[str, Ints]]:
    """Yield zones or hosts with the indexes of their rows."""
    if by_host:
        found = [table.host_at(row) for row in rows]
    else:
        places, codes = zones.places(table, default_zone)
        found = [places[code] for code in codes[rows]]
    names = np.array(found, dtype=object)
    for name in sorted(set(names)):
        yield str(name), np.flatnonzero(names == name)


def drain(
    pipeline: HostPipeline,
    table: HostTable,
    requests: Iterable[Request],
    default_zone: str,
) -> Iterator[Move]:
    """Yield where instances could go, one after the other.

    The plan counts itself: what one instance takes is not there for those
    after it. The largest go first, since they have the fewest places.

    :param table: is changed by what the plan assumes
    :param requests: one for each instance, with the host to leave among its
        ``ignore_hosts``
    """
    rng = random.Random(0)  # noqa: S311 - hosts of equal weight, not secrets
    overlay = Overlay(table)
    for request in sorted(requests, key=_size, reverse=True):
        try:
            result = pipeline.select(overlay, request, rng, 1)
        except errors.NoValidHost as refused:
            yield Move(request, None, None, None, str(refused.args[0]))
            continue
        row = result.assignments[0].row
        yield Move(
            request,
            table.host_at(row),
            table.node_at(row),
            table.zone_at(row, default_zone),
            '',
        )


def _size(request: Request) -> tuple[int, ...]:
    taken = request.resources
    return tuple(taken.get(one, 0) for one in ('MEMORY_MB', 'VCPU', 'DISK_GB'))
