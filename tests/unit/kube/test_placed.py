"""Placed pods, read from what an API server writes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from scheduler_service import extender_wire as wire
from scheduler_service.kube import placed
from scheduler_service.kube.usage import usage_of
from tests.support import kube

REQUEST = json.dumps({'flavor': {'vcpus': 3, 'memory_mb': 7, 'extra_specs': {
    'resources:CUSTOM_A': '2'}}})  # fmt: skip


def new_pod(number: int, **more: Any) -> dict[str, Any]:
    made = kube.pod(f'p{number}', **more)
    made['metadata']['uid'] = f'u{number}'
    made['metadata']['managedFields'] = [{'manager': 'm'}]
    made['spec']['nodeName'] = f'n{number}'
    return made


def written(pod: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(pod).encode())


KINDS: list[dict[str, Any]] = [
    {},
    {'requests': {'cpu': '2', 'memory': '1Gi', 'ephemeral-storage': '5Gi'}},
    {'extended': {'example.com/fpga': '1'}},
    {'overhead': {'cpu': '250m'}},
    {'resources': {'requests': {'cpu': '4'}}},
    {'annotations': {'d/request': REQUEST}},
    {'annotations': {'other': 'x'}, 'initContainers': [
        {'name': 'i', 'resources': {'requests': {'cpu': '3'}}}]},
    {'initContainers': [{'name': 'i', 'restartPolicy': 'Always',
                         'resources': {'requests': {'cpu': '3'}}}]},
    {'containers': [{'name': 'without'}, {'name': 'none', 'resources': {}}]},
    {'containers': None},
]  # fmt: skip


def test_pods_of_each_kind_take_what_their_documents_say():
    reader = placed.PlacedPodReader('d')
    # The second time each is known.
    for number in [*range(len(KINDS))] * 2:
        pod = new_pod(number, **KINDS[number])
        found = reader.read(written(pod))
        assert found == (f'u{number}', f'n{number}', usage_of(pod, 'd'))
        assert placed.uid_of(written(pod)) == f'u{number}'


@pytest.mark.parametrize(
    'document',
    [5, {}, {'metadata': None}, {'metadata': {'uid': 'u'}, 'spec': []},
     new_pod(1, requests={'cpu': 'much'})],
)  # fmt: skip
def test_pod_that_cannot_be_read_is_refused(document):
    with pytest.raises(wire.WireError):
        placed.PlacedPodReader('d').read(written(document))
