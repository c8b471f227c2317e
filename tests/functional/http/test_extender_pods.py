"""What pods ask for, and what they use, when we are the extender."""

import json
from typing import Any

from tests.support import kube
from tests.support.http_client import HttpClient

DOMAIN = 'scheduler-service.local'
HOSTS = {
    'hosts': [
        {'host': 'a', 'vcpus': 8, 'memory_mb': 8192,
         'cpu_allocation_ratio': 1.0, 'ram_allocation_ratio': 1.0,
         'resources': {'CUSTOM_FPGA': {'total': 4, 'used': 1},
                       'CUSTOM_EXAMPLE_COM_GPU': {'total': 2}}},
        {'host': 'b', 'vcpus': 8, 'memory_mb': 8192, 'memory_mb_used': 4096,
         'cpu_allocation_ratio': 1.0, 'ram_allocation_ratio': 1.0},
    ],
}  # fmt: skip


def send(http: HttpClient, verb: str, pod: Any, *nodes: Any) -> Any:
    names: Any = list(nodes)
    asked: dict[str, Any] = {'Pod': pod, 'Nodes': None, 'NodeNames': names}
    if nodes and not isinstance(nodes[0], str):
        asked.update(Nodes={'items': names}, NodeNames=None)
    status, answer = http.send('POST', f'/extender/{verb}', asked)
    assert status == 200
    return answer


def scores(http: HttpClient, pod: Any, *names: str) -> dict[str, int]:
    answer = send(http, 'prioritize', pod, *names)
    return {one['Host']: one['Score'] for one in answer}


def asking(**extended: str) -> Any:
    named = {name.replace('__', '/'): n for name, n in extended.items()}
    return kube.pod('p', extended={
        name.replace('D/', f'{DOMAIN}/'): n for name, n in named.items()
    })  # fmt: skip


def test_pod_passes_only_where_its_classes_are_offered(serve_http):
    http = serve_http(inventory=HOSTS)
    answer = send(http, 'filter', asking(D__CUSTOM_FPGA='3'), 'a', 'b')
    assert answer['NodeNames'] == ['a']
    assert (
        '3 CUSTOM_FPGA requested, 0 offered'
        in (answer['FailedAndUnresolvableNodes']['b'])
    )
    # One of the four is in use: evicting pods may help.
    answer = send(http, 'filter', asking(D__CUSTOM_FPGA='4'), 'a', 'b')
    assert answer['NodeNames'] == []
    assert '4 CUSTOM_FPGA requested, 3 free' in answer['FailedNodes']['a']
    gpu = kube.pod('p', extended={'example.com/gpu': '2'})
    assert send(http, 'filter', gpu, 'a', 'b')['NodeNames'] == ['a']
    none = kube.pod('p', extended={'example.com/gpu': '0'})
    assert send(http, 'filter', none, 'a', 'b')['NodeNames'] == ['a', 'b']


def asking_in_an_annotation(name: str) -> Any:
    asked = json.dumps({'flavor': {'extra_specs': {f'resources:{name}': '1'}}})
    return kube.pod('p', annotations={f'{DOMAIN}/request': asked})


def test_class_that_no_node_offers_is_left_to_others(serve_http):
    """Such as dynamic resource allocation, or another extender."""
    http = serve_http(inventory=HOSTS)
    other = kube.pod('p', extended={'example.com/fpga': '1'})
    assert send(http, 'filter', other, 'a', 'b')['NodeNames'] == ['a', 'b']
    # What it requests beside that is checked.
    both = asking(**{'example.com__fpga': '1'}, D__CUSTOM_FPGA='4')
    answer = send(http, 'filter', both, 'a', 'b')
    assert answer['NodeNames'] == []
    assert set(answer['FailedNodes']) == {'a'}
    assert set(answer['FailedAndUnresolvableNodes']) == {'b'}
    # In our own names it is ours, and a wrong name is no answer.
    for own in (asking(D__CUSTOM_NONE='1'), asking_in_an_annotation('VGPU')):
        answer = send(http, 'filter', own, 'a', 'b')
        assert set(answer['FailedAndUnresolvableNodes']) == {'a', 'b'}
    # A node that has none at the moment does not offer it.
    nodes = [kube.node('n1', {'example.com/fpga': '0'}), kube.node('n2')]
    passed = send(http, 'filter', other, *nodes)['Nodes']['items']
    assert passed == nodes
    # Others of the cluster do: a call may have few of the nodes.
    send(http, 'filter', other, kube.node('n3', {'example.com/fpga': '1'}))
    answer = send(http, 'filter', other, *nodes)
    assert answer['Nodes']['items'] == []


def test_classes_on_the_list_are_checked_and_no_others(serve_http):
    http = serve_http(
        inventory=HOSTS, kubernetes__managed_resources=['example.com/fpga']
    )
    for pod, passed in (
        (asking(**{'example.com__fpga': '1'}), []),
        # On offer, and counted by the kube-scheduler or by somebody else.
        (asking(**{'example.com__gpu': '9'}), ['a', 'b']),
        (asking(**{'example.com__gpu': '1', 'example.com__fpga': '1'}), []),
        (asking(D__CUSTOM_FPGA='1'), ['a']),
        (asking_in_an_annotation('CUSTOM_EXAMPLE_COM_GPU'), ['a']),
        (kube.pod('p'), ['a', 'b']),
    ):
        assert send(http, 'filter', pod, 'a', 'b')['NodeNames'] == passed


def test_resources_of_init_containers_count_too(serve_http):
    http = serve_http(inventory=HOSTS)
    pod = asking(D__CUSTOM_FPGA='1')
    pod['spec']['initContainers'] = [
        {'resources': {'limits': {f'{DOMAIN}/CUSTOM_FPGA': '4'}}}
    ]
    assert send(http, 'filter', pod, 'a', 'b')['NodeNames'] == []


def test_nodes_are_evaluated_by_what_their_objects_offer(serve_http):
    http = serve_http()
    nodes = [
        kube.node('n1', {'example.com/fpga': '1'}),
        kube.node('n2'),
    ]
    pod = kube.pod('p', extended={'example.com/fpga': '1'})
    answer = send(http, 'filter', pod, *nodes)
    assert answer['Nodes']['items'] == nodes[:1]


def test_request_in_an_annotation_takes_no_resource_from_containers(
    serve_http,
):
    http = serve_http(inventory=HOSTS)
    pod = asking(D__CUSTOM_FPGA='1')
    pod['metadata']['annotations'] = {f'{DOMAIN}/request': '{}'}
    assert send(http, 'filter', pod, 'a', 'b')['NodeNames'] == ['a']


def test_load_does_not_count_when_pods_are_not_followed(serve_http):
    http = serve_http(inventory=HOSTS)
    assert scores(http, kube.pod('p'), 'a', 'b') == {'a': 0, 'b': 0}


def test_unknown_node_is_refused_with_what_to_do(serve_http):
    answer = send(serve_http(), 'filter', kube.pod('p'), 'stranger')
    assert answer['NodeNames'] == []
    reason = answer['FailedNodes']['stranger']
    assert '--from-nodes' in reason
    assert '[kubernetes] enabled' in reason


def test_labels_of_sent_nodes_are_mapped_as_those_of_kept_ones(serve_http):
    http = serve_http(
        kubernetes__labels={'pool': 'metadata.pool', 'ssd': 'trait.CUSTOM_S'}
    )
    specs = {'trait:CUSTOM_S': 'required',
             'aggregate_instance_extra_specs:pool': 'gold'}  # fmt: skip
    asked = json.dumps({'flavor': {'extra_specs': specs}})
    pod = kube.pod('p', annotations={f'{DOMAIN}/request': asked})
    nodes = [
        kube.node('n1', labels={'pool': 'gold', 'ssd': 'true'}),
        kube.node('n2', labels={'pool': 'gold', 'ssd': 'false'}),
        kube.node('n3', labels={'pool': 'tin', 'ssd': 'true'}),
    ]
    answer = send(http, 'filter', pod, *nodes)
    assert answer['Nodes']['items'] == nodes[:1]
