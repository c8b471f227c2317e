"""Keys of pods: one key, one request."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from scheduler_service import extender_wire as wire
from scheduler_service.kube import pod_keys, reading, usage

DOMAIN = 'd.example'


def container(name: str, **more: Any) -> dict[str, Any]:
    amounts = {'cpu': '100m', 'memory': '128Mi', 'd.example/CUSTOM_FPGA': '1'}
    return {
        'name': name,
        'image': 'registry.example/pause:3.9',
        'resources': {'requests': amounts, 'limits': {**amounts}},
        'volumeMounts': [{'name': f'access-{name}', 'mountPath': '/x'}],
        **more,
    }


def full_pod(**annotations: str) -> dict[str, Any]:
    """Return a pod with every field that says what it asks for."""
    return {
        'metadata': {
            'name': 'a', 'namespace': 'default', 'uid': 'u',
            'labels': {'app': 'x', 'd.example/server-group': 'g'},
            'annotations': {'other': 'y', **annotations},
        },
        'spec': {
            'nodeSelector': {'topology.kubernetes.io/zone': 'z',
                             'trait.d.example/HW_CPU_X86_AVX2': 'true'},
            'containers': [container('a'), container('b')],
            'initContainers': [
                container('c', restartPolicy='Always'), container('d'),
            ],
            'resources': {'requests': {'cpu': '3'}},
            'overhead': {'memory': '64Mi'},
            'affinity': {'nodeAffinity': {}},
            'tolerations': [{'key': 'k', 'operator': 'Exists'}],
            'schedulerName': 'default-scheduler',
            'priority': 0,
        },
        'status': {'phase': 'Pending'},
    }  # fmt: skip


PODS = [
    full_pod(),
    full_pod(**{'d.example/request': json.dumps({'flavor': {'vcpus': 3}})}),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[Any]:
    """Yield the path of every value inside a document."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy with another value at a path, or without it."""
    made = copy.deepcopy(document)
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return made


def asked(pod: Any) -> Any:
    """Return what a pod asks for and takes, or that it cannot be read."""
    try:
        request = reading.pod_request(pod, DOMAIN)
        taken = usage.usage_of(pod, DOMAIN)
    except wire.WireError as fault:
        return str(fault)
    document = msgspec.to_builtins(request)
    # Each request has ids of its own.
    for name in ('request_id', 'instance_uuids'):
        document.pop(name, None)
    return document, taken


@pytest.mark.parametrize('pod', PODS, ids=['fields', 'annotation'])
@pytest.mark.parametrize('value', [None, '7', 7, True, [], {}], ids=repr)
def test_key_differs_wherever_the_request_does(pod, value):
    key, request = pod_keys.key_of(pod, DOMAIN), asked(pod)
    assert key is not None
    differing = 0
    for path in places(pod):
        other = changed(pod, path, value)
        if asked(other) != request:
            differing += 1
            assert pod_keys.key_of(other, DOMAIN) != key, path
    assert differing


def test_key_is_the_same_for_pods_of_one_set():
    pods = []
    for name in 'ab':
        pod = full_pod()
        pod['metadata'].update(name=name, uid=name * 36, generation=4)
        pod['metadata']['labels']['statefulset.kubernetes.io/pod-name'] = name
        pod['spec']['volumes'] = [{'name': f'access-{name}'}]
        pods.append(pod)
    first, second = (pod_keys.key_of(pod, DOMAIN) for pod in pods)
    assert first == second


@pytest.mark.parametrize(
    'odd',
    [
        None,
        {},
        {'metadata': None, 'spec': None},
    ],
)
def test_pods_without_anything_have_a_key(odd):
    assert pod_keys.key_of(odd, DOMAIN) == pod_keys.key_of({}, DOMAIN)


@pytest.mark.parametrize(
    'odd',
    [
        17,
        {'Spec': {'nodeSelector': {}}},
        {'metadata': 'a'},
        {'metadata': {'Annotations': {}}},
        {'metadata': {'annotations': 'text'}},
        {'spec': {'CONTAINERS': []}},
        {'spec': {'containers': 'x'}},
        {'spec': {'containers': [{'Resources': {}}]}},
    ],
    ids=str,
)
def test_unusual_pods_have_no_key(odd):
    assert pod_keys.key_of(odd, DOMAIN) is None


def test_keys_that_were_seen_are_limited_in_number_and_length():
    seen = pod_keys._SEEN['metadata', 'spec']
    assert pod_keys.key_of({'k' * 100: 1}, DOMAIN) is not None
    assert not any(len(key) == 100 for key in seen)
    many = {f'more{at}': 1 for at in range(2000)}
    assert pod_keys.key_of(many, DOMAIN) is not None
    assert len(seen) == 1000
    # Those that are not kept are looked at each time.
    assert pod_keys.key_of({**many, 'Spec': {}}, DOMAIN) is None
