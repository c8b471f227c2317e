"""Tables of stored nodes, and of those that the store lacks."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from scheduler_service.columns import Overlay
from scheduler_service.columns.instances import PlacedInstance
from scheduler_service.columns.table import Snapshot
from scheduler_service.engine.newest_copy import NewestCopy
from scheduler_service.filters.hosts.ram_filter import RamFilter
from scheduler_service.kube import node_reader
from scheduler_service.kube.node_reader import (
    NodeReader,
    SentNodes,
    StoredNodes,
)
from scheduler_service.kube.pod_reader import PodReader
from scheduler_service.model import STANDARD_CLASSES, ServerGroup
from scheduler_service.pipeline import HostPipeline
from scheduler_service.settings import Settings
from scheduler_service.testing import table as build_table
from scheduler_service.weighers.load_weigher import RAMWeigher
from tests.support import kube


class World:
    """Two hosts of 1,000 MB each, evaluated for pods."""

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
        self.newest = NewestCopy(lambda: self.snapshot)
        self.stored = StoredNodes(pipeline, self.newest)
        self.reader = PodReader('d')

    def ask(self, memory: str = '600Mi', **pod):
        asks = {'resources': {'requests': {'memory': memory}}}
        request = self.reader.request(
            kube.read({'spec': {'containers': [asks]}, **pod})
        )
        self.stored.newest()
        return self.stored.results(request)


@pytest.fixture
def world() -> World:
    made = World()
    assert made.stored.newest() is None
    made.snapshot = made.next
    return made


def test_pods_that_ask_the_same_share_filter_results(world):
    first = world.ask(metadata={'name': 'a'})
    assert world.ask(metadata={'name': 'b'}) is first
    assert world.ask('700Mi') is not first


def test_use_is_seen_by_the_next_call(world):
    assert world.ask().passing().tolist() == [True, True]
    Overlay(world.snapshot.hosts).take(0, {'MEMORY_MB': 500}, 1)
    assert world.ask().passing().tolist() == [False, True]
    Overlay(world.snapshot.hosts).take(0, {'MEMORY_MB': 500}, -1)
    assert world.ask().passing().tolist() == [True, True]


def late(world):
    """Have the copy compared by the next call."""
    world.newest._until = 0.0


@pytest.mark.parametrize('part', ['use', 'number', 'instance', 'group'])
def test_results_are_forgotten_when_a_part_of_a_change_was_missing(
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


STANDARD = set(STANDARD_CLASSES)


def raw(name: str, **resources: str) -> msgspec.Raw:
    allocatable = {'cpu': '1', **{f'd/{k}': v for k, v in resources.items()}}
    node = {'metadata': {'name': name}, 'status': {'allocatable': allocatable}}
    return msgspec.Raw(msgspec.json.encode(node))


class Reader(NodeReader):
    """Counts how often it reads."""

    def __init__(self) -> None:
        super().__init__('d', {}, ())
        self.read_names: list[str] = []

    def read(self, node: Any) -> Any:
        self.read_names.append(node['metadata']['name'])
        return super().read(node)


def classes_of(nodes: Mapping[str, msgspec.Raw], *requested: str) -> set[str]:
    sent = SentNodes(Reader())
    table, listed, unread = sent.table_of(list(nodes), nodes, requested)
    assert listed == list(nodes)
    assert unread == {}
    for name in requested:
        assert table.resources[name].total.tolist() == [
            3 if f'"d/{name}"'.encode() in bytes(node) else -1
            for node in nodes.values()
        ]
    return set(table.resources)


def test_table_has_each_class_that_nodes_of_a_cluster_offer():
    nodes = {name: raw(name, CUSTOM_A='3', CUSTOM_B=name) for name in '12'}
    assert classes_of(nodes, 'CUSTOM_A') == {
        *STANDARD, 'CUSTOM_A', 'CUSTOM_B',
    }  # fmt: skip


def test_table_has_the_classes_asked_alone_when_every_node_has_its_own():
    nodes = {
        f'n{at}': raw(f'n{at}', **{f'CUSTOM_{at}': '3'}) for at in range(1500)
    }
    # A column for each would be 1,500 x 1,500 numbers.
    assert classes_of(nodes, 'CUSTOM_7') == {*STANDARD, 'CUSTOM_7'}


def test_cache_of_nodes_is_limited_by_their_size(monkeypatch):
    monkeypatch.setattr(node_reader, '_MAX_CACHED_SIZE', 2**20)
    padding = b'x' * (300 * 2**10)
    reader = Reader()
    sent = SentNodes(reader)
    names = [f'n{at}' for at in range(4)]

    text = b'{"metadata": {"name": "%s", "x": "%s"}}'
    items = {
        name: msgspec.Raw(text % (name.encode(), padding)) for name in names
    }
    # The last of four nodes of 300 KiB is the first over 1 MiB.
    for name in (*names, 'n3', 'n0'):
        sent.table_of([name], items, ())
    assert reader.read_names == [*names, 'n0']
