"""Builds host tables from documents, or from a table and its changes."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from scheduler_service.columns.dictionary import DictionaryColumn, Ints
from scheduler_service.columns.instances import InstanceIndex, PlacedInstance
from scheduler_service.columns.load import Index, LoadColumns
from scheduler_service.columns.table import HostTable, ResourceColumns
from scheduler_service.columns.topology import Topology
from scheduler_service.model import (
    COUNT_FIELDS,
    ENCODED_FIELDS,
    FLAG_FIELDS,
    NESTED_FIELDS,
    STANDARD_FIELDS,
    Aggregate,
    Host,
    Instance,
    Resource,
    ServerGroup,
    UnitLimits,
)
from scheduler_service.model.inventory import AggregateMap, provider_of


def build_table(
    hosts: Sequence[tuple[int, Host]],
    aggregates: Iterable[Aggregate] = (),
    instances: Iterable[PlacedInstance] = (),
    groups: Iterable[ServerGroup] = (),
    classes: Collection[str] | None = None,
) -> HostTable:
    """Build a table from scratch.

    :param hosts: (store id, document) pairs, ids different
    :param classes: the resource classes to make columns of, beside the
        standard ones; None: each that a host offers
    """
    ordered = sorted(hosts, key=lambda pair: pair[0])
    index = InstanceIndex.of(instances)
    documents = [host for _, host in ordered]
    counts = collections.Counter(
        (placed.host, placed.node) for placed in index
    )
    return assemble(
        np.array([store_id for store_id, _ in ordered], np.int64),
        _numbers(documents, counts),
        _coded(documents),
        _resources(documents, classes),
        aggregates,
        index,
        groups,
    )


def assemble(
    ids: Ints,
    numbers: Mapping[str, Any],
    coded: Mapping[str, DictionaryColumn],
    resources: Mapping[str, ResourceColumns],
    aggregates: Iterable[Aggregate],
    instances: InstanceIndex,
    groups: Iterable[ServerGroup],
) -> HostTable:
    """Return a table of given columns.

    :param ids: int64[n], store ids, ascending
    :param numbers: plain columns by name, each [n]
    :param coded: dictionary-encoded columns by name, without aggregates
    :param resources: capacity and use by resource class
    """
    table = HostTable(
        ids=ids,
        numbers=numbers,
        coded=coded,
        resources=resources,
        topology=Topology(AggregateMap()),
        instances=instances,
        groups={group.uuid: group for group in groups},
    )
    return with_aggregates(table, aggregates)


def placed(
    instance: Instance, claimed: bool = False, bound_for: str = ''
) -> PlacedInstance:
    """Return what the index keeps of an instance document."""
    flavorid = instance.flavor.get('flavorid')
    return PlacedInstance(
        uuid=instance.uuid,
        host=instance.host,
        node=instance.hypervisor_hostname,
        project_id=instance.project_id,
        flavorid=None if flavorid is None else str(flavorid),
        image=image_properties(instance.image_meta),
        task_state=instance.task_state,
        claimed=claimed,
        bound_for=bound_for,
    )


def image_properties(image_meta: Mapping[str, Any]) -> Any:
    """Return the (property, value) pairs of an image as text, a frozenset."""
    properties = image_meta.get('properties') or {}
    return frozenset((key, str(v)) for key, v in properties.items())


def with_aggregates(
    table: HostTable, aggregates: Iterable[Aggregate]
) -> HostTable:
    """Return the table with these aggregates instead of the old ones."""
    by_id = AggregateMap(
        (aggregate.id, aggregate)
        for aggregate in sorted(aggregates, key=lambda a: a.id)
    )
    hosts = table.coded['host']
    codes, sets = _membership(hosts, by_id)
    member = DictionaryColumn(hosts.expand(codes), sets)
    resources, shared = _share(table, by_id, member)
    return dataclasses.replace(
        table,
        coded={**table.coded, 'aggregate_set': member},
        resources=resources,
        topology=Topology(by_id),
        shared=shared,
        load=LoadColumns(),
    )


def _share(
    table: HostTable,
    aggregates: Mapping[int, Aggregate],
    member: DictionaryColumn,
) -> tuple[Mapping[str, ResourceColumns], dict[str, Ints]]:
    """Have hosts offer what one of their aggregates does and they do not.

    Of several aggregates the first gives the class.

    :param table: with what other aggregates gave before
    :return: ``resources`` and ``shared`` of the table
    """
    names = {n for each in aggregates.values() for n in each.resources}
    resources, shared = dict(table.resources), dict[str, Ints]()
    absent = ResourceColumns.absent(len(table))
    for name in sorted(names | table.shared.keys()):
        columns = resources.get(name, absent)
        if name in table.shared:
            columns = columns.where(table.shared[name] == 0, absent)
        givers = [
            next(
                (aggregates[n] for n in sorted(ids)
                 if name in aggregates[n].resources),
                None,
            )
            for ids in member.values
        ]  # fmt: skip
        offers = _custom(
            [None if each is None else each.resources[name] for each in givers]
        )
        numbers = [provider_of(each.id) if each else 0 for each in givers]
        providers = member.expand(np.array(numbers, np.int64))
        providers[columns.total >= 0] = 0
        given = offers.map(member.expand)
        resources[name] = columns.where(providers == 0, given)
        if name in names:
            shared[name] = providers
    return resources, shared


def _membership(
    hosts: DictionaryColumn, aggregates: Mapping[int, Aggregate]
) -> tuple[npt.NDArray[np.int32], tuple[frozenset[int], ...]]:
    """Return the aggregates of each distinct service host.

    Hosts start with the empty set. Each aggregate replaces every set that its
    members have so far by a set that includes it. The cost is the sum of the
    members, whatever the number of hosts.

    :return: int32[distinct hosts], codes of sets; and the sets
    """
    codes = np.zeros(len(hosts.values), np.int32)
    sets = [frozenset[int]()]
    for aggregate in aggregates.values():
        codes_of_hosts = map(
            hosts.index.get, set(aggregate.hosts), itertools.repeat(-1)
        )
        members = np.fromiter(codes_of_hosts, np.int64)
        members = members[members >= 0]
        before, inverse = np.unique(codes[members], return_inverse=True)
        codes[members] = inverse + len(sets)
        sets += [sets[code] | {aggregate.id} for code in before.tolist()]
    used, compact = np.unique(codes, return_inverse=True)
    return (
        compact.astype(np.int32),
        tuple(sets[code] for code in used.tolist()),
    )


def with_hosts(
    table: HostTable,
    changed: Sequence[tuple[int, Host]],
    gone: Iterable[int] = (),
) -> HostTable:
    """Return the table with some hosts added, replaced or removed."""
    touched = np.array([i for i, _ in changed] + list(gone), np.int64)
    kept = np.flatnonzero(~np.isin(table.ids, touched))
    tail = build_table(changed)
    joined = _concat(_take(table, kept), tail)
    ordered = _take(joined, np.argsort(joined.ids, kind='stable'))
    whole = dataclasses.replace(
        ordered, instances=table.instances, groups=table.groups
    )
    return with_aggregates(whole, table.topology.aggregates.values())


def _numbers(
    hosts: Sequence[Host], counts: Mapping[tuple[str, str], int]
) -> dict[str, Any]:
    count = len(hosts)
    least = [
        np.nan if h.disk_available_least is None else h.disk_available_least
        for h in hosts
    ]

    def ints(values: Iterable[int]) -> Any:
        return np.fromiter(values, np.int64, count)

    return {
        **{
            word: np.array([getattr(h, name) == word for h in hosts], np.bool_)
            for name, word in FLAG_FIELDS.items()
        },
        **{
            name: ints(getattr(h, name) for h in hosts)
            for name in COUNT_FIELDS
        },
        'disk_available_least': np.array(least, np.float64),
        'num_instances': ints(
            counts.get((h.host, h.hypervisor_hostname), 0)
            if h.num_instances is None
            else h.num_instances
            for h in hosts
        ),
    }


def _coded(hosts: Sequence[Host]) -> dict[str, DictionaryColumn]:
    coded = {
        'host': DictionaryColumn.of(h.host for h in hosts),
        'node': DictionaryColumn.of(h.hypervisor_hostname for h in hosts),
        'uuid': DictionaryColumn.of(h.uuid for h in hosts),
        'trait_set': DictionaryColumn.of(frozenset(h.traits) for h in hosts),
    }
    for name in ENCODED_FIELDS:
        coded[name] = DictionaryColumn.of(getattr(h, name) for h in hosts)
    for name in NESTED_FIELDS:
        coded[name] = _documents([getattr(h, name) for h in hosts])
    return coded


def _documents(values: Sequence[Any]) -> DictionaryColumn:
    """Encode nested values by their JSON text: equal values share a code."""
    encode = msgspec.json.Encoder(order='deterministic').encode
    return DictionaryColumn.of(
        None if v is None else encode(v) for v in values
    )


def _resources(
    hosts: Sequence[Host], classes: Collection[str] | None
) -> dict[str, ResourceColumns]:
    columns = {
        name: _standard(hosts, name, *fields)
        for name, fields in STANDARD_FIELDS.items()
    }
    offered = {name for host in hosts for name in host.resources}
    if classes is not None:
        offered.intersection_update(classes)
    for name in sorted(offered):
        columns[name] = _custom([h.resources.get(name) for h in hosts])
    return columns


def _standard(
    hosts: Sequence[Host],
    name: str,
    total: str,
    used: str,
    ratio: str,
) -> ResourceColumns:
    columns = ResourceColumns.absent(len(hosts))
    for row, host in enumerate(hosts):
        limits = host.units.get(name)
        if limits is not None:
            _put_units(columns, row, limits)
    ratios = [getattr(h, ratio) for h in hosts]
    return dataclasses.replace(
        columns,
        total=np.array([getattr(h, total) for h in hosts], np.int64),
        used=np.array([getattr(h, used) for h in hosts], np.int64),
        ratio=np.array(
            [np.nan if r is None else r for r in ratios], np.float64
        ),
    )


def _custom(offers: Sequence[Resource | None]) -> ResourceColumns:
    columns = ResourceColumns.absent(len(offers)).map(np.copy)
    for row, offer in enumerate(offers):
        if offer is not None:
            _put_offer(columns, row, offer)
    return columns


def _put_offer(columns: ResourceColumns, rows: Index, offer: Resource) -> None:
    columns.total[rows] = offer.total
    columns.reserved[rows] = offer.reserved
    columns.used[rows] = offer.used
    columns.ratio[rows] = offer.allocation_ratio
    _put_units(columns, rows, offer)


def _put_units(
    columns: ResourceColumns, row: Index, limits: Resource | UnitLimits
) -> None:
    columns.min_unit[row] = limits.min_unit
    columns.max_unit[row] = limits.max_unit or 2**53
    columns.step_size[row] = limits.step_size


def _take(table: HostTable, rows: Any) -> HostTable:
    return dataclasses.replace(
        table,
        ids=table.ids[rows],
        numbers={k: v[rows] for k, v in table.numbers.items()},
        coded={k: v.take(rows) for k, v in table.coded.items()},
        resources={
            k: v.map(lambda column: column[rows])
            for k, v in table.resources.items()
        },
        shared={k: v[rows] for k, v in table.shared.items()},
    )


def _concat(head: HostTable, tail: HostTable) -> HostTable:
    resources = {}
    for name in [*head.resources, *tail.resources]:
        first = head.resources.get(name) or ResourceColumns.absent(len(head))
        second = tail.resources.get(name) or ResourceColumns.absent(len(tail))
        resources[name] = first.map(lambda *both: np.concatenate(both), second)
    return dataclasses.replace(
        head,
        ids=np.concatenate([head.ids, tail.ids]),
        numbers={
            k: np.concatenate([v, tail.numbers[k]])
            for k, v in head.numbers.items()
        },
        coded={k: v.concat(tail.coded[k]) for k, v in head.coded.items()},
        resources=resources,
        shared={
            k: np.concatenate([v, np.zeros(len(tail), np.int64)])
            for k, v in head.shared.items()
        },
    )
