"""A shortlist says what a pass over all hosts says, to the last bit."""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_service import errors
from scheduler_service.columns import Overlay
from scheduler_service.columns.build import with_load
from scheduler_service.filters.hosts import all_filters
from scheduler_service.model import documents
from scheduler_service.pipeline import HostPipeline, shortlist, standing
from scheduler_service.pipeline.weights import Weights
from scheduler_service.settings import Settings
from scheduler_service.testing.builders import table
from scheduler_service.weighers import BUILT_IN

FILTERS = [
    'RetryFilter', 'AvailabilityZoneFilter', 'ComputeFilter', 'RamFilter',
    'CoreFilter', 'DiskFilter', 'ComputeCapabilitiesFilter',
    'ImagePropertiesFilter', 'ServerGroupAntiAffinityFilter',
    'ServerGroupAffinityFilter', 'IoOpsFilter', 'NumInstancesFilter',
    'AggregateRamFilter',
]  # fmt: skip


def chain(plain: Settings) -> HostPipeline:
    by_name = {kind.name: kind for kind in all_filters()}
    return HostPipeline(
        [by_name[name]() for name in FILTERS],
        [kind() for kind in BUILT_IN],
        plain,
    )


def cloud(count: int, rng: random.Random, alike: bool) -> Any:
    hosts = []
    for number in range(count):
        some = random.Random(0) if alike else rng
        hosts.append({
            'host': f'h{number}',
            'vcpus': some.choice((8, 16)),
            'memory_mb': some.choice((8192, 16384, 16385)),
            'memory_mb_used': some.randrange(0, 4096, 512),
            'local_gb': 100,
            'local_gb_used': some.randrange(10),
            'num_io_ops': 0 if alike else rng.choice((0, 0, 0, 3)),
        })  # fmt: skip
    return table({
        'hosts': hosts,
        'aggregates': [
            {'id': 1, 'hosts': [f'h{n}' for n in range(0, count, 3)],
             'metadata': {'availability_zone': 'z', 'ram_weight_multiplier':
                          '0.5', 'ram_allocation_ratio': '1.1'}},
        ],
    })  # fmt: skip


def outcome(pipeline: HostPipeline, overlay: Overlay, request: Any,
            seed: int, shapeless: bool) -> Any:  # fmt: skip
    """Return all there is to see of a choice; nothing stays taken."""
    if shapeless:
        pipeline.shortlists._made.clear()
    rng = random.Random(seed)
    try:
        choice = pipeline.choose(overlay, request, rng)
    except errors.NoValidHost as error:
        return error.to_dict()
    return (
        [(one.row, one.placement, one.ratios) for one in choice.picked],
        choice.explanation(),
    )


REQUESTS = [
    {'flavor': {'memory_mb': 512, 'vcpus': 1, 'root_gb': 1}},
    {'flavor': {'memory_mb': 2048, 'vcpus': 2}},
    {'flavor': {'memory_mb': 512}, 'availability_zone': 'z'},
    {'flavor': {'memory_mb': 512}, 'ignore_hosts': ['h1', 'h2']},
]


@pytest.mark.parametrize(('kept', 'top'), [(4, 2), (16, 6), (384, 96)])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    count=st.sampled_from([1, 2, 30, 60]),
    alike=st.booleans(),
    subset=st.sampled_from([1, 1, 3]),
    ties=st.booleans(),
    steps=st.lists(st.sampled_from('aaaabcdlrupqk'), min_size=5, max_size=40),
)
def test_a_shortlist_is_a_pass(
    kept, top, seed, count, alike, subset, ties, steps
):
    """Two engines on equal tables: one keeps shortlists, one never does."""
    plain = Settings(
        host_subset_size=subset, shuffle_best_same_weighed_hosts=ties,
        ram_allocation_ratio=1.0, max_io_ops_per_host=4,
    )  # fmt: skip
    with (
        mock.patch.object(shortlist, '_KEPT', kept),
        mock.patch.object(standing, '_TOP', top),
        mock.patch.object(standing, '_LATE', top),
    ):
        run(plain, seed, count, alike, steps)


def run(plain: Settings, seed: int, count: int, alike: bool,
        steps: list[str]) -> None:  # fmt: skip
    one, two = (cloud(count, random.Random(seed), alike) for _ in range(2))
    quick, slow = chain(plain), chain(plain)
    rng = random.Random(seed)
    overlays = Overlay(one), Overlay(two)
    for turn, step in enumerate(steps):
        if step in 'abcd':
            asked = documents.request({
                **REQUESTS['abcd'.index(step)], 'request_id': f'r{turn}',
                'instance_uuids': [f'00000000-0000-0000-0000-{turn:012d}'],
            })  # fmt: skip
            found = outcome(quick, overlays[0], asked, turn, False)
            assert found == outcome(slow, overlays[1], asked, turn, True)
        elif step == 'l':
            row, use = rng.randrange(count), rng.randrange(12000)
            up = rng.random() < 0.7
            tables = [
                with_load(one.published(), {'MEMORY_MB': {row: use}},
                          {'up': {row: up}})
                for one in overlays
            ]  # fmt: skip
            overlays = Overlay(tables[0]), Overlay(tables[1])
        elif step in 'pq':
            like = documents.request(REQUESTS[0]).with_ids()
            table = overlays[0].table
            quick.shortlists.catch_up(table, like, ahead=step == 'p')
        elif step == 'k':
            for overlay in overlays:
                overlay.published()
        elif step == 'r':
            for overlay in overlays:
                overlay.discard()
        else:
            tables = [overlay.published() for overlay in overlays]
            overlays = Overlay(tables[0]), Overlay(tables[1])


def test_a_shortlist_is_used_and_counts_the_hosts():
    """The third of a shape is answered without looking at all hosts."""
    pipeline = chain(Settings(ram_allocation_ratio=1.0))
    overlay = Overlay(cloud(2000, random.Random(1), False))
    narrow, passes = pipeline.narrow, []

    def counted(*args: Any) -> Any:
        passes.append(1)
        return narrow(*args)

    pipeline.narrow = counted  # type: ignore[method-assign]
    for turn in range(200):
        asked = documents.request({
            **REQUESTS[0],
            'instance_uuids': [f'00000000-0000-0000-0000-{turn:012d}'],
        })  # fmt: skip
        choice = pipeline.choose(overlay, asked, random.Random(1))
        told = choice.explanation()
        assert told['hosts'] == 2000
        assert told['passed'] == told['funnel'][-1]['end']
    assert 2 <= len(passes) <= 20


def test_most_of_a_batch_is_foreseen():
    """What hosts weigh is added up ahead, and not for one after the other."""
    rng = random.Random(1)
    pipeline = chain(Settings(ram_allocation_ratio=1.0))
    overlay = Overlay(table({'hosts': [
        {'host': f'h{n}', 'vcpus': 64, 'vcpus_used': rng.randrange(60),
         'memory_mb': rng.choice((2**17, 2**18)),
         'memory_mb_used': rng.randrange(2**16), 'local_gb': 9000}
        for n in range(1000)
    ]}))  # fmt: skip
    with mock.patch.object(
        Weights,
        'put_foreseen',
        autospec=True,
        side_effect=Weights.put_foreseen,
    ) as foreseen:
        for turn in range(200):
            asked = documents.request({
                **REQUESTS[0],
                'instance_uuids': [f'00000000-0000-0000-0000-{turn:012d}'],
            })  # fmt: skip
            pipeline.choose(overlay, asked, random.Random(1))
    assert foreseen.call_count > 100


def test_only_of_the_best_is_known_what_becomes_of_them():
    """However long it goes on, and whoever becomes the best."""
    pipeline = chain(Settings(ram_allocation_ratio=1.0))
    hosts = table({'hosts': [
        {'host': f'h{n}', 'vcpus': 64, 'memory_mb': 2**18,
         'memory_mb_used': 2**17 + n, 'local_gb': 9000}
        for n in range(1000)
    ]})  # fmt: skip
    like = documents.request(REQUESTS[0])
    for turn in range(5):
        freed = range(150 * turn, 150 * (turn + 1))
        use = dict.fromkeys(freed, 2**16 - 9999 * turn)
        hosts = with_load(hosts, {'MEMORY_MB': use}, {})
        overlay = Overlay(hosts)
        for _ in range(10):
            pipeline.choose(overlay, like.with_ids(), random.Random(1))
        hosts = overlay.published()
        pipeline.shortlists.catch_up(hosts, like, ahead=True)
    (made,) = pipeline.shortlists._made.values()
    assert 0 < len(made._after) <= shortlist._AHEAD


def test_what_a_shape_remembers_is_of_its_own_hosts_alone():
    """Rows name other hosts once the hosts are others."""
    pipeline = chain(Settings(ram_allocation_ratio=1.0))
    asked = documents.request({
        **REQUESTS[0],
        'instance_uuids': ['00000000-0000-0000-0000-000000000001'],
    })  # fmt: skip
    few = Overlay(table({'hosts': [
        {'host': f'old-{n}', 'vcpus': 8, 'memory_mb': 8192, 'local_gb': 100}
        for n in range(3)
    ]}), trial=True)  # fmt: skip
    for _ in range(3):
        pipeline.choose(few, asked, random.Random(1))
    others = Overlay(table({'hosts': [
        {'host': f'new-{n}', 'vcpus': 8, 'memory_mb': 8192, 'local_gb': 100}
        for n in range(3)
    ]}), trial=True)  # fmt: skip
    advice = [{int(one): 0.0 for one in others.table.ids}]
    choice = pipeline.choose(others, asked, random.Random(1), advice=advice)
    (picked,) = choice.picked
    assert picked.placement.selected.host == 'new-0'
    offered = [one.host for one in picked.placement.alternates]
    assert offered == ['new-1', 'new-2']
