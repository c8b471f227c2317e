"""Columns of load hold what they would if they were made anew."""

import dataclasses
import functools

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler_service.columns import Overlay
from scheduler_service.columns.changes import Update
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.columns.topology import Topology
from scheduler_service.filters import hosts as host_filters
from scheduler_service.filters.base import ComparisonFilter
from scheduler_service.filters.hosts.type_affinity_filter import (
    TypeAffinityFilter,
)
from scheduler_service.model import documents
from scheduler_service.testing import table
from scheduler_service.weighers import BUILT_IN as WEIGHERS
from scheduler_service.weighers.base import ColumnWeigher
from tests.support import filter_strategies
from tests.support.filter_strategies import inventories, small

SETTINGS = dataclasses.replace(
    filter_strategies.SETTINGS, allow_self_overcommit=False
)
REQUEST = documents.request({}).with_ids()
FILTERS = [
    kind()
    for kind in host_filters.BUILT_IN
    if issubclass(kind, ComparisonFilter)
]
FLAVORS = ['1', '2', '3', None]
COLUMN_WEIGHERS = [
    kind() for kind in WEIGHERS if issubclass(kind, ColumnWeigher)
]
rows = st.integers(0, 4)
amounts = st.dictionaries(
    st.sampled_from(['VCPU', 'MEMORY_MB', 'DISK_GB']), st.integers(1, 300)
)
assumptions = st.tuples(
    st.just('assume'), rows, amounts, st.sampled_from(FLAVORS)
)
# What other daemons placed, moved or removed.
moves = st.tuples(
    st.just('move'),
    st.sampled_from(filter_strategies.INSTANCES),
    st.one_of(st.none(), rows),
    st.sampled_from(FLAVORS),
)
reports = st.tuples(
    st.just('report'),
    st.dictionaries(
        st.sampled_from(['VCPU', 'MEMORY_MB', 'DISK_GB']),
        st.dictionaries(rows, small, min_size=1),
    ),
    st.fixed_dictionaries(
        {},
        optional={
            'num_instances': st.dictionaries(rows, small, min_size=1),
            'num_io_ops': st.dictionaries(rows, small, min_size=1),
            'up': st.dictionaries(rows, st.booleans(), min_size=1),
            'disk_available_least': st.dictionaries(
                rows, st.sampled_from([float('nan'), -1.0, 3.0]), min_size=1
            ),
        },
    ),
)
steps = st.lists(
    st.one_of(
        assumptions,
        moves,
        reports,
        st.tuples(st.just('forget')),
        st.tuples(st.just('commit')),
    ),
    max_size=8,
)


def load_columns(hosts):
    """Return the columns of all filters and weighers that have any."""
    columns = {
        (one.name, number): comparison.column
        for one in FILTERS
        if one.name != 'TypeAffinityFilter'
        for number, comparison in enumerate(
            one.comparisons(hosts, REQUEST, SETTINGS)
        )
    }
    for weigher in COLUMN_WEIGHERS:
        columns[weigher.name, 0] = weigher.column(hosts, SETTINGS)
    # Columns of plug-ins of others may follow any plain column.
    for name in ('num_instances', 'num_io_ops', 'up'):
        columns['doubled', name] = hosts.load_column(
            ('doubled', name), name, functools.partial(doubled, hosts, name)
        )
    # Flavors are numbered as they come: compare what the numbers say.
    for flavor in FLAVORS:
        request = documents.request({'flavor': {'flavorid': flavor}})
        columns['flavor', flavor] = TypeAffinityFilter().mask(
            hosts, request, SETTINGS
        )
    return columns


def doubled(hosts, name):
    """Return the formula of twice a plain column."""
    values = hosts.number(name)
    return lambda rows: values[rows] * 2


def take_step(overlay, number, kind, *arguments):
    """Change the load of hosts in one of the ways that the engine does."""
    if kind == 'assume':
        row, taken, flavor = arguments
        host = overlay.table.host_at(row)
        placed = PlacedInstance(f'new-{number}', host, host, flavorid=flavor)
        overlay.assume(row, taken, placed)
    elif kind == 'move':
        uuid, row, flavor = arguments
        placed = None
        if row is not None:
            host = overlay.table.host_at(row)
            placed = PlacedInstance(uuid, host, host, flavorid=flavor)
        update = (
            Update(instances=[placed])
            if placed
            else Update(instances_gone=[uuid])
        )
        update.apply(overlay.table)
    elif kind == 'report':
        used, numbers = arguments
        for name, by_row in used.items():
            update = Update(
                loaded=overlay.table.ids[[*by_row]].tolist(),
                used={name: [*by_row.values()]},
            )
            update.apply(overlay.table)
        for name, by_row in numbers.items():
            update = Update(
                loaded=overlay.table.ids[[*by_row]].tolist(),
                numbers={name: [*by_row.values()]},
            )
            update.apply(overlay.table)
    else:
        getattr(overlay, kind)()


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(inventory=inventories, changes=steps)
def test_columns_follow_the_load(inventory, changes):
    hosts = table(inventory)
    overlay = Overlay(hosts)
    load_columns(hosts)
    for number, change in enumerate(changes):
        take_step(overlay, number, *change)
        anew = hosts.copy(Topology(hosts.topology.aggregates))
        expected = load_columns(anew)
        for name, column in load_columns(hosts).items():
            np.testing.assert_array_equal(column, expected[name], str(name))


@settings(max_examples=8, deadline=None, derandomize=True)
@given(inventory=inventories, changes=st.lists(assumptions, max_size=5))
def test_what_is_forgotten_leaves_no_trace(inventory, changes):
    hosts = table(inventory)
    before = {
        name: column.copy() for name, column in load_columns(hosts).items()
    }
    overlay = Overlay(hosts)
    with overlay.transaction():
        for number, change in enumerate(changes):
            take_step(overlay, number, *change)
            expected = load_columns(
                hosts.copy(Topology(hosts.topology.aggregates))
            )
            for name, column in load_columns(hosts).items():
                np.testing.assert_array_equal(
                    column, expected[name], str(name)
                )
    overlay.forget()
    for name, column in load_columns(hosts).items():
        np.testing.assert_array_equal(column, before[name], str(name))
