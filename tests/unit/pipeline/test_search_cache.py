"""What is kept of earlier searches changes nothing that is found."""

from __future__ import annotations

import random
import uuid
import weakref
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as given_settings
from hypothesis import strategies as st

from scheduler_service import errors
from scheduler_service.columns import HostTable, Overlay, load
from scheduler_service.columns.changes import Update
from scheduler_service.filters.base import HostFilter
from scheduler_service.filters.hosts import all_filters
from scheduler_service.model import documents
from scheduler_service.pipeline import HostPipeline, search, search_cache
from scheduler_service.pipeline.filtering import MASK
from scheduler_service.pipeline.search_cache import SearchCache
from scheduler_service.pipeline.selection import explanation
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from scheduler_service.weighers import BUILT_IN
from scheduler_service.weighers.base import Weigher

FILTERS = (
    'RetryFilter',
    'AvailabilityZoneFilter',
    'ComputeFilter',
    'RamFilter',
    'CoreFilter',
    'DiskFilter',
    'ComputeCapabilitiesFilter',
    'ImagePropertiesFilter',
    'ServerGroupAntiAffinityFilter',
    'ServerGroupAffinityFilter',
    'IoOpsFilter',
    'NumInstancesFilter',
    'AggregateRamFilter',
    'SameHostFilter',
    'DifferentHostFilter',
    'AggregateMultiTenancyIsolation',
    'IsolatedHostsFilter',
)
POLICIES = ('affinity', 'anti-affinity', 'soft-affinity', 'soft-anti-affinity')
SMALL = {'memory_mb': 512, 'vcpus': 1, 'root_gb': 1}
REQUESTS: tuple[dict[str, Any], ...] = (
    {'flavor': SMALL},
    {'flavor': {'memory_mb': 2048, 'vcpus': 2}},
    {'flavor': {'memory_mb': 512}, 'availability_zone': 'z'},
    {'flavor': {'memory_mb': 512}, 'ignore_hosts': ['h1', 'h2', 'none']},
    {'flavor': {'memory_mb': 512}, 'retry': {'hosts': [['h3', 'h3']]}},
    {'flavor': {**SMALL, 'extra_specs': {'trait:T': 'required'}}},
    {'flavor': {'memory_mb': 10**6}},
    {'flavor': SMALL, 'project_id': 'p'},
    {'flavor': SMALL, 'project_id': 'q'},
    {'flavor': SMALL, 'image': {'id': 'i'}},
    {'flavor': SMALL, 'image': {'id': 'j'}},
)


def group_id(policy: str) -> str:
    """Return the uuid of the group with a policy."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, policy))


class ProjectFilter(HostFilter):
    """A plug-in that reads who asks."""

    def mask_key(self, table: Any, request: Any, settings: Any) -> Any:
        return (request.project_id,)

    def mask(self, table: Any, request: Any, settings: Any) -> Any:
        return np.arange(len(table)) % 2 == (request.project_id == 'p')


def pipeline(
    settings: Settings, cache: SearchCache | None, plugin: bool = False
) -> HostPipeline:
    """Return the pipeline of this module, with or without the cache."""
    by_name = {kind.name: kind for kind in all_filters()}
    more = [ProjectFilter()] if plugin else []
    return HostPipeline(
        [by_name[name]() for name in FILTERS] + more,
        [kind() for kind in BUILT_IN],
        settings,
        cache=cache,
    )


def cloud(
    count: int, seed: int, alike: bool, tenants: bool = False
) -> HostTable:
    """Return a table of hosts with load, all alike or not.

    :param tenants: whether a third of the hosts is for one project
    """
    rng = random.Random(seed)
    hosts = []
    for number in range(count):
        source = random.Random(0) if alike else rng
        hosts.append(
            {
                'host': f'h{number}',
                'vcpus': source.choice((8, 16)),
                'memory_mb': source.choice((8192, 16384, 16385)),
                'memory_mb_used': source.randrange(0, 4096, 512),
                'local_gb': 100,
                'local_gb_used': source.randrange(10),
                'failed_builds': 0 if alike else rng.choice((0, 0, 2)),
                'num_io_ops': 0 if alike else rng.choice((0, 0, 0, 3)),
                'hypervisor_version': source.choice((1, 2)),
                'traits': ['T'] if number % 2 else [],
            }
        )
    metadata = {
        'availability_zone': 'z',
        'ram_weight_multiplier': '0.5',
        'ram_allocation_ratio': '1.1',
    }
    if tenants:
        metadata['filter_tenant_id'] = 'p'
    return table(
        {
            'hosts': hosts,
            'aggregates': [
                {
                    'id': 1,
                    'hosts': [f'h{n}' for n in range(0, count, 3)],
                    'metadata': metadata,
                }
            ],
            'server_groups': [
                {
                    'uuid': group_id(policy),
                    'name': policy,
                    'project_id': 'p',
                    'policy': policy,
                }
                for policy in POLICIES
            ],
        }
    )


class World:
    """A table with a pipeline of its own; equal steps keep worlds equal."""

    def __init__(
        self,
        chain: HostPipeline,
        count: int,
        seed: int,
        alike: bool,
        keeps_plans: bool = True,
        tenants: bool = False,
        keeps_top: bool = False,
    ) -> None:
        self.chain = chain
        self.min_hosts = 0 if keeps_top else count + 1
        self.keeps_plans = keeps_plans
        self.count = count
        self.overlay = Overlay(cloud(count, seed, alike, tenants))
        self.rng = random.Random(seed)
        self.placed: list[str] = []

    def request(self, turn: int, **how: Any) -> Any:
        """Return all there is to see of a request's result."""
        several = how.pop('several', 1)
        uuids = [str(uuid.UUID(int=turn * 100 + n)) for n in range(several)]
        request = documents.request(
            {**how, 'request_id': f'r{turn}', 'instance_uuids': uuids}
        )
        if not self.keeps_plans:
            request.__dict__['shape'] = None
        try:
            with mock.patch.object(search, '_MIN_HOSTS', self.min_hosts):
                result = self.chain.select(
                    self.overlay, request, random.Random(turn)
                )
        except errors.NoValidHost as error:
            return error.to_dict()
        self.placed += uuids
        return (
            [
                (assignment.row, assignment.placement, assignment.ratios)
                for assignment in result.assignments
            ],
            explanation(result.reasons),
        )

    def take(self, turn: int, step: str) -> Any:
        """Take one step; return what is to be seen of it."""
        if step.isdigit():
            return self.request(turn, **REQUESTS[int(step)])
        if step in POLICIES:
            return self.request(
                turn, flavor=SMALL, instance_group=group_id(step)
            )
        return getattr(self, step)(turn)

    def several(self, turn: int) -> Any:
        """Ask for several instances."""
        return self.request(
            turn, flavor=SMALL, several=self.rng.choice((2, 4))
        )

    def several_apart(self, turn: int) -> Any:
        """Ask for several instances that keep apart."""
        group = group_id('anti-affinity')
        return self.request(
            turn, flavor=SMALL, several=3, instance_group=group
        )

    def hinted(self, turn: int) -> Any:
        """Ask for the host of another instance, or for any other."""
        hints = {}
        for name in ('same_host', 'different_host'):
            if self.placed and self.rng.random() < 0.7:
                hints[name] = self.rng.choice(self.placed)
        return self.request(turn, flavor=SMALL, scheduler_hints=hints)

    def report(self, turn: int) -> None:
        """Let a host report other figures."""
        self.overlay.commit()
        row = self.rng.randrange(self.count)
        table = self.overlay.table
        update = Update(
            loaded=[table.ids.item(row)],
            numbers={'up': [self.rng.random() < 0.7]},
            used={'MEMORY_MB': [self.rng.randrange(12_000)]},
        )
        update.apply(table)

    def commit(self, turn: int) -> None:
        """Keep what was assumed."""
        self.overlay.commit()

    def forget(self, turn: int) -> None:
        """Take back what was assumed."""
        self.overlay.forget()


STEPS = [
    *map(str, range(len(REQUESTS))),
    '0',
    '0',
    '1',
    *POLICIES,
    'several',
    'several_apart',
    'hinted',
    'report',
    'commit',
    'forget',
]


@given_settings(max_examples=50, deadline=None, derandomize=True)
@given(
    kept=st.sampled_from([(4, 1), (12, 3), (768, 8)]),
    changes=st.sampled_from([8, 1 << 16]),
    seed=st.integers(0, 10**6),
    count=st.sampled_from([1, 2, 30, 60]),
    alike=st.booleans(),
    subset=st.sampled_from([1, 1, 3]),
    ties=st.sampled_from([False, False, True]),
    aged=st.sampled_from([1, 8, 256]),
    few=st.sampled_from([0, 5]),
    top=st.sampled_from([2, 4, 8]),
    blocks=st.sampled_from([1, 2, 4]),
    tenants=st.booleans(),
    limited=st.booleans(),
    isolated=st.sampled_from([(), ('i',)]),
    plugin=st.booleans(),
    steps=st.lists(st.sampled_from(STEPS), min_size=8, max_size=50),
)
def test_results_are_those_of_a_pass_over_all_hosts(
    kept, changes, seed, count, alike, subset, ties, aged, few, top, blocks,
    tenants, limited, isolated, plugin, steps,
):  # fmt: skip
    best, extremes = kept
    settings = Settings(
        host_subset_size=subset,
        shuffle_best_same_weighed_hosts=ties,
        ram_allocation_ratio=1.0,
        max_io_ops_per_host=4,
        limit_tenants_to_placement_aggregate=limited,
        isolated_images=isolated,
        isolated_hosts=('h0',),
    )
    with (
        mock.patch.object(load, '_KEPT', changes),
        mock.patch.object(search_cache, '_LEADERS', best),
        mock.patch.object(search_cache, '_MOST_CHOSEN', 4 * best),
        mock.patch.object(search_cache, '_EXTREMES', extremes),
        mock.patch.object(search_cache, '_AGED', aged),
        mock.patch.object(search_cache, '_FEW', few),
        mock.patch.multiple(
            search, _TOP=top, _MOST_TOP=2 * top, _BLOCKS=blocks, _COST=0
        ),
    ):
        cached, planned, topped, plain = (
            World(
                pipeline(settings, cache, plugin),
                count,
                seed,
                alike,
                keeps_plans,
                tenants,
                keeps_top,
            )
            for cache, keeps_plans, keeps_top in (
                (SearchCache(min_hosts=0), True, False),
                (None, True, False),
                (None, True, True),
                (None, False, False),
            )
        )
        for turn, step in enumerate(steps, 1):
            seen = plain.take(turn, step)
            assert cached.take(turn, step) == seen
            assert planned.take(turn, step) == seen
            assert topped.take(turn, step) == seen


def cramped(seed: int) -> HostTable:
    """Return a table of hosts that differ, and are full soon."""
    rng = random.Random(seed)
    return table(
        {
            'hosts': [
                {
                    'host': f'h{number}',
                    'vcpus': rng.randrange(2, 9),
                    'memory_mb': rng.randrange(3000, 9000),
                    'local_gb': rng.randrange(20, 40),
                }
                for number in range(40)
            ]
        }
    )


@given_settings(max_examples=15, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 1000),
    ram=st.sampled_from([1.0, -1.0, 0.0, 1e9]),
    cpu=st.sampled_from([1.0, -2.0]),
    top=st.sampled_from([4, 8, 12]),
    steps=st.lists(
        st.sampled_from(['1', '1', '1', '1', '0', 'several', 'report',
                         'commit', 'forget']),
        min_size=20,
        max_size=60,
    ),
)  # fmt: skip
def test_top_hosts_are_certain_while_ranges_change_and_hosts_fill(
    seed, ram, cpu, top, steps
):
    settings = Settings(
        ram_allocation_ratio=1.0,
        cpu_allocation_ratio=1.0,
        ram_weight_multiplier=ram,
        cpu_weight_multiplier=cpu,
    )
    with mock.patch.multiple(
        search, _TOP=top, _MOST_TOP=2 * top, _BLOCKS=1, _COST=0
    ):
        topped, plain = (
            World(
                pipeline(settings, None), 40, seed, False, keeps_top=keeps_top
            )
            for keeps_top in (True, False)
        )
        topped.overlay, plain.overlay = (
            Overlay(cramped(seed)) for _ in range(2)
        )
        for turn, step in enumerate(steps, 1):
            assert topped.take(turn, step) == plain.take(turn, step)


class NumberWeigher(Weigher):
    """A plug-in that is asked for each request."""

    def weigh(self, table: Any, rows: Any, request: Any, settings: Any) -> Any:
        return (np.arange(len(table)) % 7 * 1.0)[rows]


@pytest.mark.parametrize('weighers', [[NumberWeigher()], []])
def test_all_hosts_are_weighed_where_weights_are_not_kept(weighers):
    made = pipeline(Settings(), None)
    chain = HostPipeline(made.filters, weighers, Settings())
    topped, plain = (
        World(chain, 300, 1, False, keeps_top=keeps_top)
        for keeps_top in (True, False)
    )
    for turn in range(1, 21):
        assert topped.take(turn, '0') == plain.take(turn, '0')


def test_few_hosts_are_weighed_for_a_request_that_comes_again():
    """All hosts are weighed again when others may weigh most by now."""
    world = World(pipeline(Settings(), None), 3000, 1, False, keeps_top=True)
    for turn in range(1, 21):
        world.take(turn, '0')
    weighing = world.chain._weighing
    with mock.patch.object(weighing, 'rank', wraps=weighing.rank) as rank:
        for turn in range(21, 221):
            world.take(turn, '0')
    assert rank.call_count < 20


def test_top_hosts_are_looked_for_less_often_where_they_are_of_no_use():
    world = World(pipeline(Settings(), None), 3000, 1, False, keeps_top=True)
    of = mock.Mock(wraps=search.TopHosts.of)
    with mock.patch.object(search.TopHosts, 'of', of):
        for turn in range(1, 801):
            # What the others take is on other hosts each time.
            world.take(turn, str(turn % 2 + turn % 3))
            world.take(1000 + turn, 'report')
    assert 1 <= of.call_count < 24


def test_requests_that_read_the_same_of_hosts_share_what_is_kept():
    """Projects and names that no filter reads do not matter."""
    cache = SearchCache(min_hosts=0)
    chain = pipeline(Settings(), cache)
    world = World(chain, 500, 1, False)
    for turn in range(1, 101):
        world.request(
            turn,
            flavor={**SMALL, 'name': f'name-{turn}'},
            project_id=f'project-{turn}',
        )
    assert cache.hits > 90
    assert cache.misses < 10


def test_leaders_are_of_their_own_hosts_when_hosts_are_replaced():
    """Rows name other hosts once there are others."""
    cache = SearchCache(min_hosts=0)
    chain = pipeline(Settings(), cache)
    for name in ('old', 'new'):
        hosts = table(
            {
                'hosts': [
                    {'host': f'{name}-{n}', 'vcpus': 8, 'memory_mb': 8192,
                     'local_gb': 100}
                    for n in range(3)
                ]
            }
        )  # fmt: skip
        for turn in range(3):
            overlay = Overlay(hosts)
            request = documents.request({'flavor': SMALL}).with_ids()
            result = chain.select(overlay, request, random.Random(turn))
            overlay.forget()
            (assigned,) = result.assignments
            assert assigned.placement.selected.host == f'{name}-0'


HOSTS = table({'hosts': [{'host': name} for name in 'abc']})


def steps(mask):
    return [(HostFilter(), MASK, mask, False)]


def test_a_mask_stays_as_long_as_what_is_kept_under_its_identity():
    """Else another mask could get its identity, and its rejections."""
    cache = search_cache.RejectionCache()
    mask = np.array([True, False, True])
    there = weakref.ref(mask)
    kept = cache.get(HOSTS, steps(mask))
    del mask
    with mock.patch.object(search_cache, '_MOST_KEPT', 1):
        search_cache._make_room(cache._by_masks, len(HOSTS))
    assert there() is not None
    assert cache.get(HOSTS, steps(there())) is kept
