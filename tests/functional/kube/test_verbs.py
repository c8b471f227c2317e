"""The daemon as a scheduler extender of others."""

import json
from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service.kube.node_reader import MOST_BYTES
from tests.support import kube
from tests.support.documents import CONTEXT, SMALL
from tests.support.paths import RECORDINGS

RECORDED = sorted(
    path
    for path in RECORDINGS.glob('request-*.json')
    if '-bind' not in path.stem
)


def pod(**spec: Any) -> dict[str, Any]:
    return {
        'metadata': {'name': 'a', 'namespace': 'default', 'uid': 'u'},
        'spec': {'containers': [{'name': 'c', 'resources': {
            'requests': {'cpu': '100m', 'memory': '128Mi'}}}], **spec},
    }  # fmt: skip


ZONE = 'topology.kubernetes.io/zone'
DOMAIN = 'scheduler-service.local'
LISTS = b'[],' * (MOST_BYTES // 3)


@pytest.mark.parametrize('path', RECORDED, ids=lambda path: path.stem)
def test_reply_has_the_form_of_the_request_when_recorded(http, path):
    told = json.loads(path.read_text())
    verb = path.stem.split('-')[1]
    status, answer = http.send('POST', f'/extender/{verb}', told['request'])
    assert status == 200
    asked = told['request']
    if verb == 'preempt':
        assert list(answer) == ['NodeNameToMetaVictims']
        return
    names = asked['NodeNames'] or [
        one['metadata']['name'] for one in asked['Nodes']['items']
    ]
    if verb == 'prioritize':
        assert [one['Host'] for one in answer] == names
        assert all(
            isinstance(one['Score'], int) and 0 <= one['Score'] <= 10
            for one in answer
        )
        return
    assert set(answer) == {
        'Nodes', 'NodeNames', 'FailedNodes', 'FailedAndUnresolvableNodes',
        'Error',
    }  # fmt: skip
    assert answer['Error'] == ''
    if asked['NodeNames'] is None:
        assert answer['NodeNames'] is None
        assert answer['Nodes']['items'] == asked['Nodes']['items']
    else:
        assert answer['Nodes'] is None
        # They are not in our store, and come by name alone.
        assert answer['FailedNodes'].keys() == set(names)


@pytest.mark.parametrize(
    ('verb', 'key'),
    [
        ('filter', 'Pod'),
        ('filter', 'pod'),
        ('prioritize', 'Pod'),
        ('preempt', 'Pod'),
    ],
)
def test_a_pod_that_no_api_server_can_have_is_refused(http, verb, key):
    told = {
        'NodeNames': ['compute-1'],
        'NodeNameToMetaVictims': {
            'compute-1': {'Pods': [{'UID': 'v'}], 'NumPDBViolations': 0}
        },
    }
    # Many small lists take far more memory than their bytes.
    status, refused = http.send(
        'POST', f'/extender/{verb}', json.dumps({key: pod(), **told}).encode()
        .replace(b'{"metadata"', b'{"status": [%s[]], "metadata"' % LISTS, 1),
    )  # fmt: skip
    assert status == 200
    if verb == 'filter':
        assert refused['NodeNames'] is None
        assert refused['Error'].startswith('PayloadTooLarge: Pod: ')
    elif verb == 'prioritize':
        assert refused == []
    else:
        assert refused == {'NodeNameToMetaVictims': {}}
    # Other parts may be as large.
    told['Old'] = 'x' * MOST_BYTES
    _, answer = http.send('POST', f'/extender/{verb}', {key: pod(), **told})
    if verb == 'filter':
        assert answer['NodeNames'] == ['compute-1']
    elif verb == 'prioritize':
        assert [one['Host'] for one in answer] == ['compute-1']
    else:
        assert list(answer['NodeNameToMetaVictims']) == ['compute-1']


def test_a_node_that_no_api_server_can_have_fails_alone(http):
    large = {**GOOD, 'metadata': {'name': 'large', 'labels': {ZONE: 'b'}}}
    large['spec'] = ['x' * MOST_BYTES]
    asked = {'Pod': pod(), 'Nodes': {'items': [large, GOOD]}}
    status, answer = http.send('POST', '/extender/filter', asked)
    assert (status, answer['Nodes']['items']) == (200, [GOOD])
    assert f'at most {MOST_BYTES}' in answer['FailedNodes']['large']


def test_hosts_are_filtered_by_the_store_when_it_knows_them(http):
    names = [f'compute-{n}' for n in (3, 1, 2)] + ['stranger']
    asked = {
        'Pod': pod(nodeSelector={ZONE: 'north'}),
        'Nodes': None, 'NodeNames': names,
    }  # fmt: skip
    _, answer = http.send('POST', '/extender/filter', asked)
    assert answer['NodeNames'] == ['compute-1', 'compute-2']
    assert (
        'AvailabilityZoneFilter'
        in (answer['FailedAndUnresolvableNodes']['compute-3'])
    )
    assert 'not in the store' in answer['FailedNodes']['stranger']
    asked['NodeNames'] = names[:3]
    _, scores = http.send('POST', '/extender/prioritize', asked)
    assert [(score['Host'], score['Score']) for score in scores] == [
        (name, 0) for name in names[:3]
    ]


def test_nodes_are_filtered_by_their_objects_when_unknown(http):
    items = [
        {'metadata': {'name': f'n{at}', 'labels': {ZONE: zone}},
         'status': {'allocatable': {'cpu': '4', 'memory': '8Gi'}}}
        for at, zone in enumerate('abab')
    ]  # fmt: skip
    asked = {
        'pod': pod(nodeSelector={ZONE: 'b'}),
        'NODES': {'Items': items}, 'nodenames': None,
    }  # fmt: skip
    _, answer = http.send('POST', '/extender/filter', asked)
    assert answer['Nodes']['items'] == [items[1], items[3]]
    never = answer['FailedAndUnresolvableNodes']
    assert set(never) == {'n0', 'n2'}
    assert 'AvailabilityZoneFilter' in never['n2']


def test_state_of_sent_nodes_is_left_to_the_scheduler(http):
    document = {'host': 'n3', 'vcpus': 4, 'memory_mb': 8192,
                'status': 'disabled', 'disabled_reason': 'broken'}  # fmt: skip
    items = [
        kube.node('n0', ready='False'),
        kube.node('n1', unschedulable=True),
        kube.node('n2', taints=[
            {'key': 'node.kubernetes.io/out-of-service',
             'effect': 'NoExecute'}]),
        kube.node('n3'),
    ]  # fmt: skip
    items[3]['metadata']['annotations'] = {
        f'{DOMAIN}/host-document': json.dumps(document)
    }
    asked = {'Pod': pod(), 'Nodes': {'items': items}, 'NodeNames': None}
    _, answer = http.send('POST', '/extender/filter', asked)
    assert answer['Nodes']['items'] == items[:3]
    # By hand, too, and the scheduler does not know of it.
    assert 'broken' in answer['FailedAndUnresolvableNodes']['n3']


def test_only_what_an_operator_disabled_is_refused_to_pods(serve_http):
    """RPC callers get none of these hosts: nobody else judges them."""
    sizes = {'vcpus': 8, 'memory_mb': 8192, 'local_gb': 100,
             'stats': {'kubernetes_node': True}}  # fmt: skip
    how = {
        'not-ready': {'state': 'down'},
        'cordoned': {
            'status': 'disabled',
            'disabled_reason': 'kubernetes: the node is unschedulable',
        },
        'tainted': {
            'status': 'disabled',
            'disabled_reason': 'kubernetes: taint example.com/a',
        },
        'broken': {'status': 'disabled', 'disabled_reason': 'broken'},
        'broken-too': {'status': 'disabled', 'state': 'down'},
    }
    hosts = [{'host': name, **sizes, **one} for name, one in how.items()]
    http = serve_http(inventory={'hosts': hosts})
    asked = {'Pod': pod(), 'Nodes': None, 'NodeNames': list(how)}
    _, answer = http.send('POST', '/extender/filter', asked)
    assert answer['NodeNames'] == ['not-ready', 'cordoned', 'tainted']
    never = answer['FailedAndUnresolvableNodes']
    assert never == {
        'broken': 'ComputeFilter: the host is disabled (broken)',
        'broken-too': 'ComputeFilter: the host is disabled',
    }
    victims = {'Pods': [{'UID': 'v'}], 'NumPDBViolations': 0}
    asked = {'Pod': pod(),
             'NodeNameToMetaVictims': dict.fromkeys(how, victims)}  # fmt: skip
    _, answer = http.send('POST', '/extender/preempt', asked)
    assert [*answer['NodeNameToMetaVictims']] == [
        'not-ready', 'cordoned', 'tainted',
    ]  # fmt: skip
    with pytest.raises(errors.NoValidHost):
        http.service.client.select_destinations(CONTEXT, {'flavor': SMALL})


@pytest.mark.parametrize(
    'odd',
    [
        {'status': {'allocatable': {'cpu': 'a lot'}}},
        {'status': {'conditions': [17]}},
        {
            'metadata': {
                'annotations': {'scheduler-service.local/host-document': '{'}
            }
        },
    ],
    ids=['quantity', 'condition', 'annotation'],
)
def test_one_node_fails_alone_when_it_cannot_be_read(http, odd):
    offered = {'allocatable': {'cpu': '4', 'memory': '8Gi'}}
    good = {'metadata': {'name': 'good'}, 'status': offered}
    bad = {**good, **odd}
    bad['metadata'] = {**odd.get('metadata', {}), 'name': 'bad'}
    asked = {'Pod': pod(), 'Nodes': {'items': [bad, good]}}
    _, answer = http.send('POST', '/extender/filter', asked)
    assert answer['Nodes']['items'] == [good]
    assert 'cannot be read' in answer['FailedNodes']['bad']
    assert answer['Error'] == ''
    _, scores = http.send('POST', '/extender/prioritize', asked)
    assert {score['Host'] for score in scores} == {'good', 'bad'}


LARGE = ['1e400', '-1e400', '9' * 5000, '-' + '9' * 5000]
GOOD = {'metadata': {'name': 'good', 'labels': {ZONE: 'b'}}, 'status': {
    'allocatable': {'cpu': '4', 'memory': '8Gi'}}}  # fmt: skip


def with_bad_node(fields: str) -> bytes:
    bad = f'{{"metadata": {{"name": "bad"}}, {fields}}}'
    listed = f'{bad}, {json.dumps(GOOD)}'
    text = f'{{"Pod": {json.dumps(pod())}, "Nodes": {{"items": [{listed}]}}}}'
    return text.encode()


@pytest.mark.parametrize('number', LARGE, ids=lambda text: text[:6])
@pytest.mark.parametrize(
    'fields',
    [
        '"spec": %s',
        '"status": {"conditions": [%s]}',
        '"status": {"allocatable": {"cpu": %s}}',
        '"status": {"allocatable": {"nvidia.com/gpu": %s}}',
        '"metadata": {"name": "bad", "labels": {"a": %s}}',
        f'"metadata": {{"name": "bad", "labels": {{"{ZONE}": %s}}}}',
    ],
    ids=['spec', 'condition', 'cpu', 'resource', 'label', 'zone'],
)
def test_one_node_fails_alone_when_a_number_is_out_of_range(
    http, fields, number
):
    body = with_bad_node(fields % number)
    status, answer = http.send('POST', '/extender/filter', body)
    assert (status, answer['Nodes']['items']) == (200, [GOOD])
    reason = answer['FailedNodes']['bad']
    assert 'cannot be read' in reason
    assert len(reason) < 200
    assert answer['Error'] == ''
    status, scores = http.send('POST', '/extender/prioritize', body)
    assert status == 200
    assert {score['Host'] for score in scores} == {'good', 'bad'}


def test_node_is_read_when_no_field_of_ours_is_out_of_range(http):
    body = with_bad_node(
        '"status": {"allocatable": {"cpu": "4", "memory": "8Gi"}, "x": 1e400}'
    )
    status, answer = http.send('POST', '/extender/filter', body)
    assert (status, answer['FailedNodes']) == (200, {})
    names = [one['metadata']['name'] for one in answer['Nodes']['items']]
    assert names == ['bad', 'good']


@pytest.mark.parametrize('value', ['1', 'true', '{"a": []}', '[]'])
@pytest.mark.parametrize('label', [ZONE, 'kubernetes.io/arch'])
def test_one_node_fails_alone_when_a_label_is_no_string(http, label, value):
    body = with_bad_node(
        f'"metadata": {{"name": "bad", "labels": {{"{label}": {value}}}}}'
    )
    status, answer = http.send('POST', '/extender/filter', body)
    assert (status, answer['Nodes']['items']) == (200, [GOOD])
    assert f'label {label}: expected a string' in answer['FailedNodes']['bad']


def test_error_is_in_a_200_reply_when_the_pod_cannot_be_read(http):
    asked = {'Pod': pod(), 'NodeNames': ['compute-1'], 'Nodes': None}
    asked['Pod']['spec']['containers'][0]['resources'] = {
        'requests': {'cpu': '1x%d'}
    }
    status, answer = http.send('POST', '/extender/filter', asked)
    assert status == 200
    assert answer['NodeNames'] is None
    assert 'is not a quantity' in answer['Error']
    assert '%' not in answer['Error']
    status, answer = http.send('POST', '/extender/prioritize', asked)
    assert (status, answer) == (200, [])


def test_lone_surrogates_are_replaced_when_a_name_has_them(http):
    text = b'{"Pod": {}, "Nodes": null, "NodeNames": ["a\\ud800"]} more'
    status, answer = http.send('POST', '/extender/filter', text)
    assert status == 200
    assert list(answer['FailedNodes']) == ['a\ufffd']


def test_reply_has_no_node_when_none_is_sent(http):
    asked = {'Pod': pod(), 'Nodes': {'items': None}, 'NodeNames': None}
    _, answer = http.send('POST', '/extender/filter', asked)
    assert answer['Nodes'] == {'metadata': {}, 'items': []}
