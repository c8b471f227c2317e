"""StoredHosts: what was said is forgotten as soon as hosts change."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType

import pytest

from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.columns.snapshot import Snapshot
from scheduler_service.filters.hosts.ram_filter import RamFilter
from scheduler_service.kube.pod_requests import PodRequests
from scheduler_service.kube.stored_nodes import StoredHosts
from scheduler_service.model import ServerGroup
from scheduler_service.pipeline import HostPipeline
from scheduler_service.settings import Settings
from scheduler_service.testing import table as build_table
from scheduler_service.weighers.ram_weigher import RAMWeigher


class World:
    """Two hosts of 1,000 MB each, and what is known of them."""

    def __init__(self) -> None:
        hosts = [
            {'host': name, 'memory_mb': 1000, 'vcpus': 8} for name in 'ab'
        ]
        table = build_table({'hosts': hosts})
        self.snapshot: Snapshot | None = None
        self.next = Snapshot(table, MappingProxyType({}), 1)
        pipeline = HostPipeline(
            [RamFilter()], [RAMWeigher()], Settings(ram_allocation_ratio=1.0)
        )
        self.stored = StoredHosts(pipeline, lambda: self.snapshot)
        self.requests = PodRequests('d')

    def ask(self, memory: str = '600Mi', **pod):
        asks = {'resources': {'requests': {'memory': memory}}}
        asked = self.requests.of({'spec': {'containers': [asks]}, **pod})
        self.stored.newest()
        return self.stored.evaluation(asked)


@pytest.fixture
def world() -> World:
    made = World()
    assert made.stored.newest() is None
    made.snapshot = made.next
    return made


def test_pods_that_ask_the_same_share_a_evaluation(world):
    first = world.ask(metadata={'name': 'a'})
    assert world.ask(metadata={'name': 'b'}) is first
    assert world.ask('700Mi') is not first
    # Keys in another case are read each time.
    assert world.ask(Metadata={'namespace': 'c'}) is not world.ask(
        Metadata={'namespace': 'c'}
    )


def test_use_is_seen_by_the_next_call(world):
    assert world.ask().passing().tolist() == [True, True]
    world.snapshot.hosts.add_use(0, {'MEMORY_MB': 500}, 1)
    assert world.ask().passing().tolist() == [False, True]
    world.snapshot.hosts.add_use(0, {'MEMORY_MB': 500}, -1)
    assert world.ask().passing().tolist() == [True, True]


def late(world):
    """Have the copy compared by the next call."""
    world.stored._known.until = 0.0


def test_what_was_said_holds_as_long_as_another_copy_is_the_same(world):
    first = world.ask()
    late(world)
    assert world.ask() is first
    assert world.stored._known.until > 0.0


@pytest.mark.parametrize('part', ['use', 'number', 'instance', 'group'])
def test_what_was_said_is_forgotten_when_a_part_of_a_change_was_missing(
    world, part
):
    first, hosts = world.ask(), world.snapshot.hosts
    # As a thread sees it that copies in the middle of a change.
    if part == 'use':
        hosts.resources['MEMORY_MB'].used[0] = 900
    elif part == 'number':
        hosts.numbers['num_instances'][1] = 3
    elif part == 'instance':
        hosts.instances.put('u', PlacedInstance('u', 'a', 'a'))
    else:
        hosts.groups['g'] = ServerGroup('g', 'affinity')
    assert world.ask() is first
    late(world)
    assert world.ask() is not first


def test_another_snapshot_is_seen_by_the_next_call(world):
    assert world.ask().passing().tolist() == [True, True]
    table = build_table({'hosts': [{'host': 'a', 'memory_mb': 10}]})
    world.snapshot = dataclasses.replace(world.snapshot, hosts=table)
    assert world.ask().passing().tolist() == [False]
    assert world.stored.newest().names == ['a']
