"""Why a pod got its node: decisions on the calls of a kube-scheduler."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from scheduler_service.cmd import manage
from tests.support import kube
from tests.support.engines import store_all
from tests.support.json_server import JsonHandler, JsonServer

HOSTS = [f'compute-{number}' for number in range(1, 5)]
ZONE = 'topology.kubernetes.io/zone'


def pod(name: str = 'web', namespace: str = 'shop', **spec: Any) -> Any:
    made = kube.pod(name, **spec)
    made['metadata'].update(namespace=namespace, uid=f'uid-of-{name}')
    return made


def call(http: Any, verb: str, which: Any, names: Any = HOSTS) -> Any:
    asked = {'Pod': which, 'NodeNames': names}
    status, answer = http.send('POST', f'/extender/{verb}', asked)
    assert status == 200
    return answer


@pytest.fixture
def name() -> str:
    """The name of a pod of this test alone."""
    return f'web-{uuid.uuid4().hex}'


@pytest.fixture
def run(tmp_path, capsys):
    """Give a function that runs a command on the store of a daemon."""

    def command(http: Any, *words: str) -> str:
        store_all(http.service.daemon.scheduler)
        url = http.service.store.engine.url
        config = tmp_path / 'a.conf'
        shown = url.render_as_string(hide_password=False)
        config.write_text(f'[database]\nconnection = {shown}\n')
        assert manage.main(['--config-file', str(config), *words]) == 0
        return capsys.readouterr().out

    return command


@pytest.fixture
def listed(run):
    """Give a function that lists the decisions on a pod, oldest first."""

    def rows(http: Any, name: str, *words: str) -> list[Any]:
        text = run(
            http, 'decision', 'list', '--pod', name, '-f', 'json', *words
        )
        return json.loads(text)[::-1]

    return rows


def test_each_verb_for_a_pod_has_a_decision(http, listed, run):
    north = pod(nodeSelector={ZONE: 'north'})
    passed = call(http, 'filter', north)['NodeNames']
    assert passed == HOSTS[:2]
    call(http, 'prioritize', north, passed)
    call(http, 'filter', pod('other', 'default'))
    rows = listed(http, 'shop/web')
    assert [(row['kind'], row['outcome']) for row in rows] == [
        ('pod_filter', 'passed'), ('pod_prioritize', 'ordered'),
    ]  # fmt: skip
    assert {row['project_id'] for row in rows} == {'shop'}
    # As for kubectl: the namespace is 'default' where none is named.
    assert [row['kind'] for row in listed(http, 'other')] == ['pod_filter']
    assert listed(http, 'web') == []
    text = run(http, 'decision', 'show', 'shop/web')
    assert '| AvailabilityZoneFilter |     4 |       2 |   2 |' in text
    assert 'Best of 2 hosts that passed' in text
    assert run(http, 'decision', 'show', 'uid-of-web') == text


def test_pod_that_passes_nowhere_has_the_filter_and_its_reason(
    http, listed, run, name
):
    call(http, 'filter', pod(name, nodeSelector={ZONE: 'nowhere'}))
    (row,) = listed(http, f'shop/{name}', '--outcome', 'refused')
    assert (row['outcome'], row['filter']) == (
        'NoValidHost', 'AvailabilityZoneFilter',
    )  # fmt: skip
    text = run(http, 'decision', 'show', f'shop/{name}')
    assert 'No node passes' in text
    assert 'nowhere' in text


def test_pod_that_is_tried_again_has_one_decision_for_each_verdict(
    http, listed, run, name
):
    for wanted in ('nowhere', 'nowhere', 'north', 'nowhere'):
        call(http, 'filter', pod(name, nodeSelector={ZONE: wanted}))
        listed(http, f'shop/{name}')
    passed, refused = listed(http, f'shop/{name}')
    assert (passed['outcome'], passed['times']) == ('passed', 1)
    assert (refused['outcome'], refused['times']) == ('NoValidHost', 3)
    assert refused['first_at'] <= passed['created_at']
    text = run(http, 'decision', 'show', f'shop/{name}')
    since = f'pod_filter: NoValidHost, 3 times since {refused["first_at"]}'
    assert since in text
    assert 'passed, ' not in text
    path = f'/decisions?request=shop/{name}'
    _, answer = http.send('GET', f'/v1{path}')
    assert [row['times'] for row in answer['decisions']] == [3, 1]
    assert 'Filter, 3 times' in http.send('GET', path)[1]
    assert '3 times, first' in http.send('GET', f'/decisions/uid-of-{name}')[1]


def test_pods_of_a_gang_are_found_by_their_group(http, run, name):
    group = {'podGroupName': name}
    nowhere = {ZONE: 'nowhere'}
    for at in range(2):
        one = pod(f'{name}-{at}', nodeSelector=nowhere, schedulingGroup=group)
        call(http, 'filter', one)
    call(http, 'filter', pod(f'{name}-2', schedulingGroup=group))
    call(http, 'filter', pod(f'{name}-3', nodeSelector=nowhere))
    # Fields in another case, as callers may spell them.
    other = pod(f'{name}-4', nodeSelector=nowhere)
    del other['spec']['containers']
    other['spec']['SchedulingGroup'] = {'PodGroupName': name}
    call(http, 'filter', other)

    def found(*words: str) -> list[Any]:
        text = run(http, 'decision', 'list', *words, '-f', 'json')
        return json.loads(text)[::-1]

    pending = found('--request', f'shop/{name}', '--outcome', 'refused')
    assert [row['pod'] for row in pending] == [
        f'shop/{name}-{at}' for at in (0, 1, 4)
    ]
    assert {row['scheduling_group'] for row in pending} == {f'shop/{name}'}
    assert len(found('--request', f'shop/{name}')) == 4
    [alone] = found('--pod', f'shop/{name}-3')
    assert alone.get('scheduling_group') is None
    shown = run(http, 'decision', 'show', f'shop/{name}')
    assert f'pod shop/{name}-1' in shown
    assert f'of group shop/{name}' in shown
    page = http.send('GET', f'/decisions?request=shop/{name}')[1]
    assert '>Scheduling group</th>' in page
    assert f'data-label="Pod">shop/{name}-1<' in page
    assert f'data-label="Scheduling group">shop/{name}<' in page
    page = http.send('GET', f'/decisions/uid-of-{name}-1')[1]
    assert f'<dt>Scheduling group</dt><dd>shop/{name}</dd>' in page


def test_unknown_nodes_and_missing_resources_are_counted(http, run, name):
    wanting = pod(name, extended={'scheduler-service.local/FPGA': '1'})
    call(http, 'filter', wanting, [*HOSTS, 'stranger'])
    rows = json.loads(
        run(http, 'decision', 'show', f'shop/{name}', '-f', 'json')
    )
    assert rows[0]['error']['facts']['funnel'] == [
        {'filter': 'node_objects', 'start': 5, 'end': 4},
        {'filter': 'offered_resources', 'start': 4, 'end': 0},
    ]


def test_nodes_where_evicting_may_help_are_kept_for_preemption(
    http, listed, run, name
):
    victims = {name: {'Pods': []} for name in HOSTS}
    asked = {
        'Pod': pod(name, nodeSelector={ZONE: 'north'}),
        'NodeNameToMetaVictims': victims,
    }
    http.send('POST', '/extender/preempt', asked)
    (row,) = listed(http, f'shop/{name}')
    assert (row['kind'], row['outcome']) == ('pod_preempt', 'passed')
    assert '2' in run(http, 'decision', 'show', f'shop/{name}')


def test_node_to_which_a_pod_is_bound_is_found(serve_http, listed, tmp_path):
    token = tmp_path / 'token'
    token.write_text('t')
    answers = iter(((201, {}), (500, {'message': 'no room in etcd'})))

    class ApiServer(JsonHandler):
        def do_POST(self) -> None:
            self.asked()
            self.say(*next(answers))

    api = JsonServer(ApiServer)
    with api.running():
        http = serve_http(
            extender__api_server=api.url,
            extender__api_token_file=str(token),
            extender__count_interval=0.0,
        )
        call(http, 'filter', pod(schedulingGroup={'podGroupName': 'gang'}))
        for _ in range(2):
            asked = {
                'PodName': 'web', 'PodNamespace': 'shop',
                'PodUID': 'uid-of-web',
                'Node': 'compute-3',
            }  # fmt: skip
            http.send('POST', '/extender/bind', asked)
        _, first, second = listed(http, 'shop/web')
    # The call that binds does not say it.
    assert first['scheduling_group'] == 'shop/gang'
    assert (first['kind'], first['outcome']) == ('pod_bind', 'chosen')
    assert first['hosts'] == ['compute-3']
    assert second['outcome'] == 'ExtenderFailed'


@pytest.fixture
def reload(http):
    """Give a function that has the daemon take other options."""
    conf = http.service.conf

    def take(**options: Any) -> None:
        for name, value in options.items():
            conf.set_override(name, value, 'kubernetes')
        for one in http.service.daemon.adapters:
            one.check(conf)()

    yield take
    conf.clear_override('record_decisions', 'kubernetes')
    conf.clear_override('ignored_namespaces', 'kubernetes')
    conf.clear_override('ignored_labels', 'kubernetes')
    take()


@pytest.mark.parametrize(
    ('options', 'namespace', 'labels', 'ignored'),
    [
        ({}, 'kube-system', {}, True),
        ({}, 'shop', {}, False),
        ({'ignored_namespaces': ['a', 'b']}, 'b', {}, True),
        ({'ignored_namespaces': []}, 'kube-system', {}, False),
        ({'ignored_labels': ['x=1']}, 'shop', {'x': '1'}, True),
        ({'ignored_labels': ['x=1']}, 'shop', {'x': '2'}, False),
        ({'ignored_labels': ['x']}, 'shop', {'x': '2'}, True),
    ],
)
def test_ignored_pods_pass_everywhere(
    http, listed, reload, name, options, namespace, labels, ignored
):
    reload(**options)
    given = pod(name, namespace, nodeSelector={ZONE: 'nowhere'})
    given['metadata']['labels'] = labels
    names = [*HOSTS, 'stranger']
    answer = call(http, 'filter', given, names)
    assert answer['NodeNames'] == (names if ignored else [])
    scores = call(http, 'prioritize', given, names)
    assert [one['Host'] for one in scores] == names
    assert {one['Score'] for one in scores} == {0}
    rows = listed(http, f'{namespace}/{name}')
    assert bool(rows) is not ignored


def test_nothing_is_stored_when_the_option_is_off(http, listed, reload, name):
    reload(record_decisions=False)
    given = pod(name)
    call(http, 'filter', given)
    call(http, 'prioritize', given)
    assert listed(http, f'shop/{name}') == []
