"""Large bodies of calls by a kube-scheduler: only what is read is parsed."""

import contextlib
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from scheduler_service import errors
from scheduler_service import extender_wire as wire
from scheduler_service.kube import verbs
from scheduler_service.kube.node_reader import MOST_BYTES
from scheduler_service.kube.verbs import NodeArgs
from tests.support import kube

POD = {'metadata': {'name': 'p', 'uid': 'u'}}
FILLER = 'x' * MOST_BYTES


def encoded(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def peak_of(read: Callable[[bytes], Any], body: bytes) -> tuple[int, Any]:
    """Return the most bytes in use while a body is read, and the result.

    The result is None where the body is refused.
    """
    found = None
    tracemalloc.start()
    with contextlib.suppress(wire.WireError, errors.PayloadTooLarge):
        found = read(body)
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return used, found


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
def test_values_that_are_not_read_take_no_memory(before, item, after):
    body = before + many(item) + after
    used, args = peak_of(NodeArgs.read, body)
    assert args is None or args.nodes.names == []
    # At most some copies of the bytes, and no object for each value.
    assert used < 3 * len(body)


@pytest.mark.parametrize('victims', [b'null', b'{}', b'{"Pods":null}'])
def test_victims_are_limited_in_number(victims):
    entries = b','.join(b'"%d":' % at + victims for at in range(500_000))
    body = b'{"Pod": {}, "NodeNameToVictims": {' + entries + b'}}'
    assert len(body) > MOST_BYTES
    used, read = peak_of(lambda text: verbs._Body(text).victims(), body)
    assert read is None
    assert used < 3 * len(body)


@pytest.mark.parametrize('spell', [str, str.lower])
def test_nodes_of_a_large_body_are_read(spell):
    nodes = [{'metadata': {'name': name}} for name in 'ab']
    body = encoded(
        **{spell('Pod'): POD, spell('Nodes'): {'items': nodes}}, Other=FILLER
    )
    args = NodeArgs.read(body)
    assert (args.pod, args.nodes.names) == (kube.read(POD), ['a', 'b'])
    assert args.nodes.items is not None
    assert [
        json.loads(bytes(args.nodes.items[name])) for name in 'ab'
    ] == nodes
    names = {spell('NodeNames'): ['a', 'b'], spell('Pod'): POD}
    args = NodeArgs.read(encoded(**names, Other=FILLER))
    assert (args.pod, args.nodes.names, args.nodes.items) == (
        kube.read(POD),
        ['a', 'b'],
        None,
    )


def test_nodes_may_be_null_in_a_large_body():
    for nodes in (None, {'items': None}):
        args = NodeArgs.read(encoded(Pod=POD, Nodes=nodes, Other=FILLER))
        assert (args.pod, args.nodes.names) == (kube.read(POD), [])


def test_a_large_body_that_is_no_json_is_refused_as_such():
    with pytest.raises(wire.NotJson):
        NodeArgs.read(encoded(Pod=POD, Other=FILLER)[:-1])


def test_victims_of_a_large_body_are_those_of_a_small_one():
    pods = [{'metadata': {'uid': uid}, 'spec': {}} for uid in 'vw']
    by_node = {'a': {'Pods': pods, 'NumPDBViolations': 2}, 'b': {'Pods': None}}
    small = encoded(Pod=POD, NodeNameToVictims=by_node)
    large = encoded(Pod=POD, NodeNameToVictims=by_node, Other=FILLER)
    read = [
        msgspec.to_builtins(verbs._Body(body).victims())
        for body in (small, large)
    ]
    assert read[0] == read[1]
    assert read[1]['a'] == {
        'Pods': [{'UID': 'v'}, {'UID': 'w'}], 'NumPDBViolations': 2,
    }  # fmt: skip
