"""The calls of the benchmark are those of a kube-scheduler."""

import itertools
import json

import pytest

from benchmarks import kube_caller
from tests.support.paths import RECORDINGS

NAMES = [f'node-{number}' for number in range(1000)]
ZONES = {name: f'az{at % 3}' for at, name in enumerate(NAMES)}


def some(count: int):
    return list(
        itertools.islice(kube_caller.windows(NAMES, ZONES.__getitem__), count)
    )


def test_windows_are_nodes_where_the_pod_fits():
    calls = some(300)
    assert len({shape.text for shape, _ in calls}) == kube_caller.SHAPES
    for shape, names in calls:
        assert len(set(names)) == len(names)
        if shape.zone is None:
            assert len(names) == 420
        else:
            assert {ZONES[name] for name in names} == {shape.zone}
    assert len({tuple(names) for _, names in calls}) > 290


def test_pods_have_the_fields_of_a_recorded_one():
    path = RECORDINGS / 'request-filter-names-136.json'
    if not path.exists():
        pytest.skip(f'{path} is not there')
    told = json.loads(path.read_text())['request']['Pod']
    pod = json.loads(kube_caller.shapes()[1].pod(1))
    assert pod.keys() == told.keys()
    for part in ('metadata', 'spec', 'status'):
        assert pod[part].keys() == told[part].keys()
