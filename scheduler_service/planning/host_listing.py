"""Hosts as rows of a list, and how full they are.

50,000 hosts take a second; their documents would take ten times as long. Any
thread may list the hosts of a copy.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from scheduler_service import texts
from scheduler_service.columns.dictionary import Floats
from scheduler_service.columns.table import HostTable
from scheduler_service.model import (
    STANDARD_CLASSES,
    STANDARD_FIELDS,
    Aggregate,
)
from scheduler_service.settings import Settings

# Columns by which hosts may be sorted.
ORDERS = (
    'host', 'zone', 'status', 'state', 'used', 'instances',
    *(f'{fields[0]}_used' for fields in STANDARD_FIELDS.values()),
)  # fmt: skip


class HostCriteria(NamedTuple):
    """Which hosts to list; None and empty criteria do not count.

    :ivar zone: name of an availability zone
    :ivar aggregate: id or name
    :ivar state: up or down
    :ivar status: enabled or disabled
    :ivar pattern: of service hosts, with ``*`` and ``?``
    :ivar order: one of :data:`ORDERS`, with a dash before it the largest
        first; equal ones are in the order of their names
    """

    zone: str | None = None
    aggregate: str | None = None
    state: str | None = None
    status: str | None = None
    pattern: str | None = None
    order: str | None = None

    def has(self, aggregates: Sequence[Aggregate], settings: Settings) -> bool:
        """Whether the aggregates of a host meet the zone and the aggregate."""
        zone, aggregate = self.zone, self.aggregate
        in_zone = not zone or zone in zones_of(aggregates, settings)
        return in_zone and (not aggregate or aggregate in _labels(aggregates))


def zones_of(aggregates: Iterable[Aggregate], settings: Settings) -> list[str]:
    """Return the availability zones of a host by its aggregates, sorted.

    That is the default zone where they have none.
    """
    zones = {zone for aggregate in aggregates for zone in aggregate.zones}
    return sorted(zones) or [settings.default_availability_zone]


def remarks(
    table: HostTable,
    criteria: HostCriteria,
    settings: Settings,
    option: str = '',
) -> Iterator[str]:
    """Yield a sentence for each name in the criteria that nothing has.

    :param option: what the names of parameters begin with
    """
    aggregates = table.topology.aggregates.values()
    zones = [*zones_of((), settings), *zones_of(aggregates, settings)]
    for name, value, values in (
        ('zone', criteria.zone, zones),
        ('aggregate', criteria.aggregate, _labels(aggregates)),
    ):
        text = texts.nothing_matches(f'{option}{name}', value or '', values)
        if value and text:
            yield text


def _labels(aggregates: Iterable[Aggregate]) -> set[str]:
    return {str(label) for one in aggregates for label in (one.name, one.id)}


def rows(
    table: HostTable, criteria: HostCriteria, settings: Settings
) -> Iterator[dict[str, Any]]:
    """Yield the hosts that meet the criteria, in their order.

    Of each standard class a row has the use, the total and the capacity:
    ``vcpus_used``, ``vcpus``, ``vcpus_capacity``. ``used`` is the use of the
    fullest of them in percent of its capacity.
    """
    sets, by_id = table.coded['aggregate_set'], table.topology.aggregates
    members = {ids: [by_id[key] for key in sorted(ids)] for ids in sets.values}
    places = {ids: _place(members[ids], settings) for ids in members}
    accepted = sets.mask_where(
        lambda ids: criteria.has(members[ids], settings)
    )
    if criteria.pattern:
        matches = re.compile(fnmatch.translate(criteria.pattern)).match
        accepted &= table.coded['host'].mask_where(
            lambda name: matches(name) is not None
        )
    for name, value, good in (
        ('up', criteria.state, 'up'),
        ('enabled', criteria.status, 'enabled'),
    ):
        if value:
            accepted &= table.number(name) == (value == good)
    enabled, up = table.number('enabled'), table.number('up')
    instances = table.number('num_instances')
    amounts = {
        f'{fields[0]}{end}': amount.round().astype(int).tolist()
        for name, fields in STANDARD_FIELDS.items()
        for offered in [table.resources[name]]
        for end, amount in (
            ('_used', offered.used),
            ('', offered.total),
            ('_capacity', table.capacity(name, settings)),
        )
    }
    fullest = percent_used(table, settings).round(1).tolist()
    ordered = sorted(
        (table.host_at(row), table.node_at(row), row)
        for row in np.flatnonzero(accepted).tolist()
    )
    order = criteria.order or 'host'
    by_row = {
        **amounts, 'used': fullest, 'instances': instances, 'state': ~up,
        'status': ~enabled,
    }.get(order.lstrip('-'))  # fmt: skip
    if by_row is not None:
        keys = [by_row[row] for *_, row in ordered]
    elif order.endswith('zone'):
        keys = [places[sets.at(row)]['zone'] for *_, row in ordered]
    else:
        keys = [host for host, *_ in ordered]
    is_falling = order.startswith('-')
    for at in sorted(
        range(len(keys)), key=keys.__getitem__, reverse=is_falling
    ):
        host, node, row = ordered[at]
        place = places[sets.at(row)]
        yield {
            'host': host,
            'node': node,
            'zone': place['zone'],
            'status': 'enabled' if enabled[row] else 'disabled',
            'state': 'up' if up[row] else 'down',
            **{name: values[row] for name, values in amounts.items()},
            'used': None if fullest[row] < 0 else fullest[row],
            'instances': int(instances[row]),
            'aggregates': place['aggregates'],
            'disabled_reason': table.coded['disabled_reason'].at(row),
        }


def _place(aggregates: Sequence[Aggregate], settings: Settings) -> Any:
    return {
        'zone': ', '.join(zones_of(aggregates, settings)),
        'aggregates': [aggregate.name for aggregate in aggregates],
    }


def percent_used(
    table: HostTable,
    settings: Settings,
    classes: Sequence[str] = STANDARD_CLASSES,
) -> Floats:
    """Return how full each host is of the fullest of some resource classes.

    :return: percent of the capacity, float64[n]; -1: no capacity
    """
    fullest = np.full(len(table), -1.0)
    for name in classes:
        limit = table.capacity(name, settings)
        some = limit > 0
        percent = 100 * table.resources[name].used[some] / limit[some]
        fullest[some] = np.maximum(fullest[some], percent)
    return fullest


def left(
    table: HostTable, settings: Settings, host: str
) -> list[dict[str, Any]]:
    """Return what a service host offers, and what is left of it.

    :return: a row for each node and resource class; the amounts are in the
        unit of the class
    """
    return [
        {
            'node': table.node_at(row),
            'resource': name,
            'total': int(offered.total[row]),
            'reserved': int(offered.reserved[row]),
            'ratio': float(offered.ratios(settings.default_ratio(name))[row]),
            'capacity': round(float(capacity)),
            'used': int(offered.used[row]),
            'left': round(float(capacity - offered.used[row])),
        }
        for row in table.rows_of_host(host).tolist()
        for name, offered in table.resources.items()
        if offered.total[row] >= 0
        for capacity in table.capacity(name, settings)[[row]]
    ]


def aggregates_of(table: HostTable, host: str) -> list[Aggregate]:
    """Return the aggregates of a service host, by id."""
    rows, sets = table.rows_of_host(host).tolist(), table.coded
    ids = {key for row in rows for key in sets['aggregate_set'].at(row)}
    return [table.topology.aggregates[key] for key in sorted(ids)]


def placed(
    table: HostTable, settings: Settings, nodes: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the documents of a service host's nodes with their place.

    :return: with ``zone``, ``aggregates`` and ``capacity``, which is the
        amounts of :func:`left` by resource class
    """
    host = nodes[0]['host']
    place = _place(aggregates_of(table, host), settings)
    capacity: dict[str, dict[str, Any]] = {}
    for amounts in left(table, settings, host):
        of_node = capacity.setdefault(amounts.pop('node'), {})
        of_node[amounts.pop('resource')] = amounts
    return [
        {
            'host': host,
            **place,
            'capacity': capacity.get(node['hypervisor_hostname']),
            **node,
        }
        for node in nodes
    ]
