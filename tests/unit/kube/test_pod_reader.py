"""Pods, as a kube-scheduler and an API server send them."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from scheduler_service import extender_wire as wire
from scheduler_service.kube import pod_reader, quantity
from scheduler_service.kube.pod_reader import Pod, PodReader, usage_of
from scheduler_service.model import documents
from tests.support import kube, pod_amounts


def test_amounts_are_summed_when_a_pod_has_init_containers():
    def asks(cpu: str, **more: Any) -> dict[str, Any]:
        return {'resources': {'requests': {'cpu': cpu}}, **more}

    amounts = pod_reader.pod_amounts(kube.read({'spec': {
        'containers': [asks('1'), asks('500m')],
        'initContainers': [
            asks('200m', restartPolicy='Always'), asks('2'),
        ],
        'overhead': {'cpu': '100m'},
    }}))  # fmt: skip
    assert str(amounts['cpu'].normalize()) == '2.3'


@pytest.mark.parametrize('case', pod_amounts.CASES)
def test_amounts_are_what_counts_while_a_pod_is_resized(case):
    amounts = pod_reader.pod_amounts(kube.read(pod_amounts.pod(case)))
    assert amounts['cpu'] == quantity.parse(pod_amounts.CASES[case][1])


def test_flavor_is_that_of_the_annotation_when_there_is_one():
    own = {'flavor': {'vcpus': 3}, 'availability_zone': 'z'}
    pod = {'metadata': {'annotations': {'d/request': json.dumps(own)}}}
    request = pod_reader.pod_request(kube.read(pod), 'd')
    assert request.flavor == documents.request(own).flavor


def taking_pod(*containers: Any, **annotations: str) -> Pod:
    return kube.read(
        {
            'metadata': {'annotations': annotations},
            'spec': {
                'containers': [{'resources': one} for one in containers],
                'overhead': {'cpu': '250m'},
            },
        }
    )


def test_requests_are_summed_without_being_rounded():
    amounts = {'requests': {'cpu': '100m', 'memory': '1536Ki',
                          'ephemeral-storage': '512Mi'}}  # fmt: skip
    usage = usage_of(taking_pod(amounts, amounts), 'd')
    assert usage.load == {'VCPU': 0.45, 'MEMORY_MB': 3.0, 'DISK_GB': 1.0}
    assert usage.classes == {}
    assert usage.amounts['pods'] == 1.0


def test_container_counts_for_load_when_it_requests_nothing():
    usage = usage_of(taking_pod({}, {'limits': {'cpu': '1'}}), 'd')
    assert usage.load['VCPU'] == 1.35
    assert usage.load['MEMORY_MB'] == 400.0


def test_container_takes_nothing_by_itself_where_the_pod_says_how_much():
    pod = taking_pod({}, {})
    pod.spec.resources = pod_reader._Resources(requests={'cpu': '2'})
    usage = usage_of(pod, 'd')
    assert usage.load['VCPU'] == 2.25
    assert usage.load['MEMORY_MB'] == 400.0


def test_classes_are_those_of_containers_and_annotation_together():
    amounts = {'limits': {'example.com/fpga': '2', 'd/CUSTOM_A': '1',
                        'example.com/none': '0'}}  # fmt: skip
    own = {'flavor': {'extra_specs': {'resources:CUSTOM_B': '3'}}}
    plain = {'CUSTOM_EXAMPLE_COM_FPGA': 2, 'CUSTOM_A': 1}
    assert usage_of(taking_pod(amounts), 'd').classes == plain
    both = usage_of(taking_pod(amounts, **{'d/request': json.dumps(own)}), 'd')
    assert both.classes == {**plain, 'CUSTOM_B': 3}


def pod_of(classes: int) -> Pod:
    amounts = {f'd/CUSTOM_{at}': '1' for at in range(classes)}
    return kube.read(
        {
            'spec': {'containers': [{'resources': {'limits': amounts}}]},
        }
    )


def test_pods_of_many_characters_do_not_fill_the_memory():
    reader = PodReader('d')
    large = [
        {'metadata': {'annotations': {'d/request': '{}' + ' ' * (2**20 + at)}}}
        for at in range(8)
    ]
    first = reader.request(kube.read(large[0]))
    for each in large[1:7]:
        reader.request(kube.read(each))
    assert reader.request(kube.read(large[0])) is first
    # The eighth is the first over 8 MiB: the others are forgotten.
    last = reader.request(kube.read(large[7]))
    assert reader.request(kube.read(large[0])) is not first
    assert reader.request(kube.read(large[7])) is last


def test_pod_is_refused_when_it_asks_for_more_classes_than_a_cluster_has():
    reader = PodReader('d')
    assert len(reader.request(pod_of(64)).usage.classes) == 64
    with pytest.raises(wire.WireError, match='65 extended resources; at most'):
        reader.request(pod_of(65))


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


def demand_of(pod: Pod) -> Any:
    """Return what a pod asks for and takes, or that it cannot be read."""
    try:
        request = pod_reader.pod_request(pod, DOMAIN)
        taken = usage_of(pod, DOMAIN)
    except wire.WireError as fault:
        return str(fault)
    document = msgspec.to_builtins(request)
    # Each request has ids of its own.
    for name in ('request_id', 'instance_uuids'):
        document.pop(name, None)
    return document, taken


@pytest.mark.parametrize(
    'pod',
    [*PODS, *map(pod_amounts.pod, pod_amounts.CASES)],
    ids=['fields', 'annotation', *pod_amounts.CASES],
)
@pytest.mark.parametrize('value', [None, '7', 7, True, [], {}], ids=repr)
def test_key_differs_wherever_the_request_does(pod, value):
    whole = kube.read(pod)
    key, request = pod_reader.key_of(whole, DOMAIN), demand_of(whole)
    differing = 0
    for path in places(pod):
        try:
            other = kube.read(changed(pod, path, value))
        except wire.WireError:
            continue
        if demand_of(other) != request:
            differing += 1
            assert pod_reader.key_of(other, DOMAIN) != key, path
    assert differing


def test_key_is_the_same_for_pods_of_one_set():
    pods = []
    for name in 'ab':
        pod = full_pod()
        pod['metadata'].update(name=name, uid=name * 36, generation=4)
        pod['metadata']['labels']['statefulset.kubernetes.io/pod-name'] = name
        pod['spec']['volumes'] = [{'name': f'access-{name}'}]
        pods.append(pod)
    first, second = (pod_reader.key_of(kube.read(pod), DOMAIN) for pod in pods)
    assert first == second


REQUEST = json.dumps({'flavor': {'vcpus': 3, 'memory_mb': 7, 'extra_specs': {
    'resources:CUSTOM_A': '2'}}})  # fmt: skip


def new_pod(number: int, **more: Any) -> dict[str, Any]:
    made = kube.pod(f'p{number}', **more)
    made['metadata']['uid'] = f'u{number}'
    made['metadata']['managedFields'] = [{'manager': 'm'}]
    made['spec'].update(nodeName=f'n{number}', priority=number or None)
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
    reader = PodReader('d')
    # The second time each is known.
    for number in [*range(len(KINDS))] * 2:
        pod = new_pod(number, **KINDS[number])
        placed = reader.placed(written(pod))
        assert placed == (
            f'u{number}',
            f'n{number}',
            usage_of(kube.read(pod), 'd'),
            number,
        )


@pytest.mark.parametrize(
    'document',
    [5, {'metadata': None}, {'metadata': {'uid': 'u'}, 'spec': []},
     new_pod(1, requests={'cpu': 'much'})],
)  # fmt: skip
def test_pod_that_cannot_be_read_is_refused(document):
    with pytest.raises(wire.WireError):
        PodReader('d').placed(written(document))


def test_a_hint_of_the_compute_service_is_refused():
    hints = {'_nova_check_type': ['rebuild']}
    own = {'flavor': {'vcpus': 1}, 'scheduler_hints': hints}
    pod = {'metadata': {'annotations': {'d/request': json.dumps(own)}}}
    with pytest.raises(wire.WireError, match='_nova_check_type: only the'):
        pod_reader.pod_request(kube.read(pod), 'd')
