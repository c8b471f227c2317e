"""How full zones are, what fits where, and where instances could go.

Nothing is claimed, and no extender is asked. Any thread may ask how full zones
are: that reads arrays that the engine's thread writes to, so that sums may be
a claim behind. The rest is called by one thread, on a snapshot that it loaded
itself, for operators who ask before they act.

What an aggregate offers once for all its hosts is a place of its own as well.
A host may be in several zones: by several aggregates, or by one whose metadata
names them with commas between. Such hosts are a place of their own, named
after all of its zones, so that no host is counted twice.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scheduler_service import errors
from scheduler_service.columns import HostTable, Overlay
from scheduler_service.columns.dictionary import (
    DictionaryColumn,
    Floats,
    Ints,
    Mask,
)
from scheduler_service.columns.table import ResourceColumns
from scheduler_service.columns.topology import Topology
from scheduler_service.model import Request
from scheduler_service.model.inventory import provider_of
from scheduler_service.pipeline import HostPipeline
from scheduler_service.planning.host_listing import zones_of
from scheduler_service.settings import Settings

_BETWEEN = ', '
# The number of zones and classes in metrics, those with most hosts; the others
# are summed up.
MOST_ZONES = 50
MOST_CLASSES = 30
OTHERS = 'others'
AGGREGATES = 'aggregates'
# Fields of :class:`ZoneUsage` as a row has them.
_AMOUNTS = 'capacity', 'used', 'over', 'out', 'free'


class ZoneUsage(NamedTuple):
    """Sums over the hosts of a zone, in the unit of the resource class.

    :ivar capacity: (total - reserved) x allocation ratio
    :ivar used: by claims, and by what hosts reported
    :ivar free: what is left of the capacity of hosts that are up and enabled
    :ivar out: what is left of that of hosts that are down or disabled
    :ivar over: what is used beyond the capacity of hosts: capacity + over =
        used + free + out
    """

    zone: str
    resource_class: str
    capacity: float
    used: float
    free: float
    out: float
    over: float

    def shares_left(self) -> tuple[float, float]:
        """Return which shares are free and out: the least runs out first."""
        return self.free / self.capacity, self.out / self.capacity


def by_zone(
    table: HostTable | None, settings: Settings, whole: bool = False
) -> list[ZoneUsage]:
    """Return how full each zone is, for each resource class.

    :param table: None: the hosts are not loaded yet
    :param whole: tell all zones and classes apart, however many there are
    """
    if not table:
        return []
    names, codes = zones(table, settings)
    labels = {name: name for name in table.resources}
    if not whole:
        names, codes = largest(names, codes)
        labels = _largest_classes(table.resources)
    available = table.numbers['enabled'] & table.numbers['up']
    sums: dict[str, npt.NDArray[np.float64]] = {}
    for name, label in labels.items():
        columns = table.resources[name]
        # What an aggregate gives is not the hosts' own.
        offered = (columns.total >= 0) & (table.shared.get(name, 0) == 0)
        limit = columns.capacity(settings.default_ratio(name))
        capacity = np.where(offered, limit, 0.0)
        used = np.where(offered, columns.used, 0) * 1.0
        of_zones = np.array(
            [
                np.bincount(codes, part, len(names))
                for part in _parts(capacity, used, available)
            ],
            np.float64,
        )
        sums[label] = sums.get(label, 0) + of_zones
    return [
        ZoneUsage(zone, label, *of_zone.tolist())
        for label, of_zones in sums.items()
        for zone, of_zone in zip(names, of_zones.T, strict=True)
        if of_zone.any()
    ] + _of_aggregates(table, settings, whole)


def _of_aggregates(
    table: HostTable, settings: Settings, whole: bool
) -> list[ZoneUsage]:
    """Return how much is used of what aggregates offer to their hosts.

    :param whole: tell them apart; false: their sum, by resource class
    """
    sums: dict[tuple[str, str], Any] = {}
    for aggregate in table.topology.aggregates.values():
        for name in aggregate.resources:
            key = f'aggregate {aggregate.name}' if whole else AGGREGATES, name
            given = table.rows_of_provider(provider_of(aggregate.id), name)
            # Each of its hosts has the same.
            for row in given[:1]:
                most = table.capacity(name, settings)[row]
                of_one = _parts(most, table.resources[name].used[row], True)
                sums[key] = sums.get(key, 0) + of_one
    return [ZoneUsage(*key, *of_all.tolist()) for key, of_all in sums.items()]


def zones(
    table: HostTable, settings: Settings
) -> tuple[list[str], npt.NDArray[np.intp]]:
    """Return the names of places, sorted, and that of each host, int[n]."""
    sets = table.coded['aggregate_set']
    aggregates = table.topology.aggregates
    by_set = [
        _BETWEEN.join(zones_of((aggregates[key] for key in ids), settings))
        for ids in sets.values
    ]
    return named(sets, by_set)


def named(
    column: DictionaryColumn, labels: list[str]
) -> tuple[list[str], npt.NDArray[np.intp]]:
    """Return the labels of a column's values, sorted, and each host's.

    :param labels: of each distinct value
    """
    names = sorted(set(labels))
    index = {name: n for n, name in enumerate(names)}
    of_value = np.array([index[name] for name in labels], np.intp)
    return names, of_value[column.codes]


def is_in(place: str, zone: str) -> bool:
    """Whether the hosts of a place are in a zone."""
    return zone in place.split(_BETWEEN)


def largest(
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
) -> dict[str, str]:
    """Return the label of each resource class.

    If there are too many, those that few hosts have get the same label.
    """

    def order(name: str) -> tuple[int, str]:
        return -int(np.count_nonzero(resources[name].total >= 0)), name

    largest = sorted(resources, key=order)[:MOST_CLASSES]
    return {name: name if name in largest else OTHERS for name in resources}


def _parts(capacity: Any, used: Any, available: Any) -> Any:
    """Return the figures of :class:`ZoneUsage` for hosts, float64[5, n]."""
    left = np.maximum(capacity - used, 0)
    over = np.maximum(used - capacity, 0)
    out = np.where(available, 0, left)
    return np.array([capacity, used, left - out, out, over])


def zone_rows(
    table: HostTable, settings: Settings, zone: str | None
) -> list[dict[str, Any]]:
    """Return how full each zone is of each class, as rows of a list.

    :param zone: only places in this availability zone; None: all
    """
    uses = by_zone(table, settings, whole=True)
    scarcest: dict[str, ZoneUsage] = {}
    some = (use for use in uses if use.capacity)
    for use in sorted(some, key=ZoneUsage.shares_left):
        scarcest.setdefault(use.zone, use)
    return [
        {
            'zone': use.zone,
            'resource': use.resource_class,
            **{name: round(getattr(use, name)) for name in _AMOUNTS},
            'full': (
                round((use.capacity - use.free) / use.capacity * 100, 1)
                if use.capacity > 0
                else None
            ),
            'ends_first': scarcest.get(use.zone) is use,
        }
        for use in sorted(uses, key=lambda use: use.zone)
        if zone is None or is_in(use.zone, zone)
    ]


class Fit(NamedTuple):
    """How many more instances of a request a zone, aggregate or host takes.

    :ivar hosts: how many hosts pass the filters
    :ivar instances: what these have room for, each host by itself; None: any
        number, since the request asks for no resource
    :ivar ends: the resource class that is used up first, or the filter that
        passes no host first; empty: the request asks for no resource
    """

    place: str
    hosts: int
    instances: int | None
    ends: str

    def row(self, by: str) -> dict[str, Any]:
        """Return it as a row of a list; *by*: what the place is."""
        return {
            by: self.place,
            'hosts': self.hosts,
            'instances': self.instances,
            'ends_first': self.ends,
        }


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
    by: str = 'zone',
) -> list[Fit]:
    """Return how much of a request fits where.

    Places where nothing fits are there; hosts where nothing fits are not.
    Dedicated CPUs count in the forms in which hosts are selected, in turn.

    :param by: ``zone``, ``aggregate`` or ``host``
    :raises FilterFault: a filter failed
    """
    passed, whole, rooms = _rooms(pipeline, table, request)
    # What each host has room for of what its aggregate gives to several.
    shared = {
        name: (table.capacity(name, pipeline.settings) - used) // amount
        for name, amount in request.resources.items()
        if name in table.shared
        for used in [table.resources[name].used]
    }
    # Of equal sums the first is the least: a resource class.
    names = sorted(rooms, key=lambda name: (not name.isupper(), name))
    places = [
        (place, there, there[passed[there]])
        for place, there in _places(table, passed, pipeline.settings, by)
    ]
    filled = [rows for *_, rows in places if len(rows)]
    in_all = _together(table, filled, whole, shared)
    sums = [
        _together(
            table,
            filled,
            rooms[name],
            {n: shared[n] for n in shared if n == name},
        )
        for name in names
    ]
    least = np.argmin(sums, axis=0).tolist() if names and filled else []
    figures = zip(in_all, least, strict=False)
    fits = []
    empty: list[Ints] = []
    zone = request.availability_zone
    for place, there, rows in places:
        if len(rows) and not names:
            fits.append(Fit(place, len(rows), None, ''))
        elif len(rows):
            count, at = next(figures)
            fits.append(Fit(place, len(rows), count, names[at]))
        elif not zone or (by == 'zone' and is_in(place, zone)):
            empty.append(there)
            fits.append(Fit(place, 0, 0, ''))
    if not empty:
        return fits
    *_, form = request.forms(table.resources)
    ends = iter(pipeline.ends(table, form, empty))
    return [
        fit if fit.hosts else fit._replace(ends=next(ends)) for fit in fits
    ]


def passing(
    pipeline: HostPipeline, table: HostTable, request: Request
) -> Mask:
    """Return which hosts an instance of a request fits on, bool[n].

    :raises FilterFault: a filter failed
    """
    masks = [mask for _, mask in pipeline.masks(table, request)]
    passed: Mask = np.logical_or.reduce(masks)
    return passed


def _rooms(
    pipeline: HostPipeline, table: HostTable, request: Request
) -> tuple[Mask, Ints, dict[str, Ints]]:
    """Return which hosts pass, and how many instances each takes.

    :return: bool[n]; int64[n]; and int64[n] by what is used up, of which the
        least counts: see :meth:`HostPipeline.rooms`
    """
    whole = np.zeros(len(table), np.int64)
    passed = np.zeros(len(table), np.bool_)
    rooms: dict[str, Ints] = {}
    forms = [*request.forms(table.resources)]
    if len(forms) > 1:
        # Others read the same arrays.
        table = table.copy(Topology(table.topology.aggregates))
    for form in forms:
        rows = np.flatnonzero(pipeline.filter_hosts(table, form))
        passed[rows] = True
        room = pipeline.rooms(table, form, rows, whole[rows])
        if not len(rows) or not room:
            continue
        most = np.minimum.reduce(list(room.values()))
        whole[rows] += most
        for name, counts in room.items():
            every = rooms.setdefault(name, np.zeros_like(whole))
            every[rows] += counts
        if len(forms) > 1:
            # The next form gets what is left.
            Overlay(table).take(rows, form.resources, most)
    return passed, whole, rooms


def _together(
    table: HostTable,
    places: Sequence[Ints],
    most: Ints,
    shared: Mapping[str, Floats],
) -> list[int]:
    """Return how many instances the hosts of each of some places take in all.

    :param places: rows of the hosts of each, at least one
    :param most: what each host takes by itself, int64[n]
    :param shared: resource class -> what each has room for, float64[n]
    """
    taken = [most[rows] for rows in places]
    for name, room in shared.items():
        for rows, takes in zip(places, taken, strict=True):
            providers = table.shared[name][rows]
            for provider in np.unique(providers[providers != 0]):
                at = np.flatnonzero(providers == provider)
                others = np.cumsum(takes[at]) - takes[at]
                left = np.maximum(room[rows[at]] - others, 0)
                takes[at] = np.minimum(left, takes[at])
    if not places:
        return []
    ends = list(itertools.accumulate(map(len, places)))
    sums: list[int] = np.add.reduceat(
        np.concatenate(taken), [0, *ends[:-1]]
    ).tolist()
    return sums


def _places(
    table: HostTable, passed: Mask, settings: Settings, by: str
) -> Iterable[tuple[str, Ints]]:
    """Return places, and the hosts that are there.

    :param passed: bool[n]: hosts without any of these are left out
    """
    if by == 'host':
        names = table.coded['host'].values_at(np.flatnonzero(passed))
        return [(name, table.rows_of_host(name)) for name in sorted({*names})]
    if by == 'aggregate':
        return _aggregates(table)
    names, codes = zones(table, settings)
    return [
        (name, np.flatnonzero(codes == code))
        for code, name in enumerate(names)
    ]


def _aggregates(table: HostTable) -> Iterator[tuple[str, Ints]]:
    """Yield each aggregate, and then the hosts that are in none."""
    sets = table.coded['aggregate_set']
    for key, aggregate in sorted(table.topology.aggregates.items()):
        members = np.array([key in ids for ids in sets.values])
        yield aggregate.name, np.flatnonzero(sets.expand(members))
    alone = np.array([not ids for ids in sets.values])
    rows = np.flatnonzero(sets.expand(alone))
    if len(rows):
        yield '', rows


def size(request: Request) -> list[int]:
    """Return what the largest requests have most of, to order them."""
    classes = 'MEMORY_MB', 'VCPU', 'DISK_GB'
    return [request.resources.get(name, 0) for name in classes]


def drain(
    pipeline: HostPipeline,
    table: HostTable,
    requests: Iterable[Request],
) -> Iterator[Move]:
    """Yield where instances could go, one after the other.

    The plan counts itself: what one instance takes is not there for those
    after it. The largest go first, since they have the fewest places.

    :param table: is changed by what the plan assumes
    :param requests: one for each instance, with the host to leave among its
        ``ignore_hosts``
    """
    default = pipeline.settings.default_availability_zone
    rng = random.Random(0)  # noqa: S311 - hosts of equal weight, not secrets
    overlay = Overlay(table)
    for request in sorted(requests, key=size, reverse=True):
        table.find_groups(request)
        refusals: list[str] = []
        result = None
        for form in request.forms(table.resources):
            try:
                result = pipeline.select(overlay, form, rng, 1)
                break
            except errors.NoValidHost as refused:
                refusals.append(str(refused.args[0]))
        if result is None:
            yield Move(request, None, None, None, refusals[0])
            continue
        row = result.assignments[0].row
        yield Move(
            request,
            table.host_at(row),
            table.node_at(row),
            table.zone_at(row, default),
            '',
        )
