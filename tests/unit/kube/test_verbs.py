"""Bodies of calls by a kube-scheduler; only what is read is parsed."""

import json
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service import extender_wire as wire
from scheduler_service.kube import verbs
from scheduler_service.kube.node_tables import MOST_BYTES
from scheduler_service.kube.verbs import NodeArgs

POD = {'metadata': {'name': 'p', 'uid': 'u'}}
FILLER = 'x' * MOST_BYTES


def encoded(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


@pytest.fixture
def peak() -> Iterator[Callable[[], int]]:
    """Give a function that returns the most bytes in use since the start."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def many(item: bytes) -> bytes:
    """Return a list of many small values, longer than any pod."""
    return b'[' + item + (b',' + item) * (2 * MOST_BYTES // len(item)) + b']'


@pytest.mark.parametrize(
    ('before', 'item', 'after'),
    [
        (b'{"Other": ', b'[]', b'}'),
        (b'{"NodeNames": ', b'"n"', b'}'),
        (b'{"Pod": {}, "NodeNames": ', b'"n"', b'}'),
        (b'{"Pod": {}, "Nodes": {"items": ', b'1', b'}}'),
        (b'{"Pod": {}, "Nodes": {"items": ', b'{}', b'}}'),
        (b'{"Pod": {}, "Nodes": {"items": ', b'{"metadata":{}}', b'}}'),
        (b'{"Pod": {}, "Nodes": ', b'1', b'}'),
        (b'{"Pod": {}, "Nodes": {"a": ', b'1', b'}}'),
        (b'{"Pod": ', b'[]', b'}'),
        (b'', b'[]', b''),
    ],
)
def test_values_that_are_not_read_take_no_memory(peak, before, item, after):
    body = before + many(item) + after
    used = peak()
    try:
        args = NodeArgs.read(body)
    except (wire.WireError, errors.PayloadTooLarge):
        args = NodeArgs(None, [], None)
    assert args.names == []
    # At most some copies of the bytes, and no object for each value.
    assert peak() - used < 3 * len(body)


@pytest.mark.parametrize('victims', [b'null', b'{}', b'{"Pods":null}'])
def test_victims_are_limited_in_number(peak, victims):
    entries = b','.join(b'"%d":' % at + victims for at in range(500_000))
    body = b'{"Pod": {}, "NodeNameToVictims": {' + entries + b'}}'
    assert len(body) > MOST_BYTES
    used = peak()
    with pytest.raises((wire.WireError, errors.PayloadTooLarge)):
        verbs._preempt_document(body)
    assert peak() - used < 3 * len(body)


@pytest.mark.parametrize('filler', ['', FILLER], ids=['small', 'large'])
@pytest.mark.parametrize('spell', [str, str.lower])
def test_nodes_of_a_body_are_read(spell, filler):
    nodes = [{'metadata': {'name': name}} for name in 'ab']
    body = encoded(
        **{spell('Pod'): POD, spell('Nodes'): {'items': nodes}}, Other=filler
    )
    args = NodeArgs.read(body)
    assert (args.pod, args.names) == (POD, ['a', 'b'])
    assert args.items is not None
    assert [json.loads(bytes(args.items[name])) for name in 'ab'] == nodes
    names = {spell('NodeNames'): ['a', 'b'], spell('Pod'): POD}
    args = NodeArgs.read(encoded(**names, Other=filler))
    assert (args.pod, args.names, args.items) == (POD, ['a', 'b'], None)


def test_nodes_may_be_null():
    for nodes in (None, {'items': None}):
        args = NodeArgs.read(encoded(Pod=POD, Nodes=nodes))
        assert (args.pod, args.names) == (POD, [])


def test_a_body_that_is_no_json_is_refused_as_such():
    with pytest.raises(wire.NotJson):
        NodeArgs.read(encoded(Pod=POD)[:-1])


@pytest.mark.parametrize('names', [5, ['a', 5], [None], {}])
def test_names_of_nodes_are_texts(names):
    with pytest.raises(wire.WireError, match='NodeNames'):
        NodeArgs.read(encoded(Pod=POD, NodeNames=names))


def test_victims_are_read():
    pods = [{'metadata': {'uid': uid}, 'spec': {}} for uid in 'vw']
    by_node = {'a': {'Pods': pods, 'NumPDBViolations': 2}, 'b': {'Pods': None}}
    body = encoded(Pod=POD, NodeNameToVictims=by_node)
    assert wire.candidate_victims(verbs._preempt_document(body)) == {
        'a': wire.Victims(['v', 'w'], 2),
        'b': wire.Victims([], 0),
    }
