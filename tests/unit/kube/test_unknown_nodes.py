"""SentNodes: tables of nodes that the store lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler_service.kube.node_reader import NodeReader
from scheduler_service.kube.unknown_nodes import SentNodes, UnknownNodes
from scheduler_service.model import STANDARD_CLASSES

STANDARD = set(STANDARD_CLASSES)


def raw(name: str, **resources: str) -> msgspec.Raw:
    allocatable = {'cpu': '1', **{f'd/{k}': v for k, v in resources.items()}}
    node = {
        'metadata': {'name': name},
        'status': {'allocatable': allocatable},
    }
    return msgspec.Raw(msgspec.json.encode(node))


class Reader(NodeReader):
    """Counts how often it reads."""

    def __init__(self) -> None:
        super().__init__('d', {}, ())
        self.read_names: list[str] = []

    def read(self, node: Any) -> Any:
        self.read_names.append(node['metadata']['name'])
        return super().read(node)


def classes_of(nodes: Mapping[str, msgspec.Raw], *asked: str) -> set[str]:
    sent = SentNodes(UnknownNodes(Reader()))
    table, listed, unread = sent.table_of(
        list(nodes), nodes.__getitem__, asked
    )
    assert listed == list(nodes)
    assert unread == {}
    for name in asked:
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


def test_node_is_read_once_unless_it_has_more_classes_than_any_cluster():
    usual = raw('usual', CUSTOM_A='1')
    odd = raw('odd', **{f'CUSTOM_{at}': '1' for at in range(101)})
    nodes = {'usual': usual, 'odd': odd}
    reader = Reader()
    sent = SentNodes(UnknownNodes(reader))
    for _ in range(2):
        sent.table_of(list(nodes), nodes.__getitem__, ())
    assert reader.read_names == ['usual', 'odd', 'odd']


def test_cache_of_nodes_is_limited_by_their_size():
    padding = 'x' * (3 * 2**20)
    reader = Reader()
    sent = SentNodes(UnknownNodes(reader))
    names = [f'n{at}' for at in range(86)]

    def document(name: str) -> msgspec.Raw:
        return msgspec.Raw(
            msgspec.json.encode({'metadata': {'name': name, 'x': padding}})
        )

    # The last of 86 nodes of 3 MiB is the first over 256 MiB.
    for name in (*names, 'n85', 'n0'):
        sent.table_of([name], document, ())
    assert reader.read_names == [*names, 'n0']
