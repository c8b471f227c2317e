"""Why was a request decided as it was, and what would change it?"""

import json

import pytest

FLAVOR = {'vcpus': 1, 'memory_mb': 2048, 'root_gb': 1}
LARGE = {**FLAVOR, 'memory_mb': 99_999}


@pytest.fixture
def select(run, tmp_path):
    """Give a function that selects hosts; it returns the decision."""

    def ask(flavor, **more):
        path = tmp_path / 'request.json'
        path.write_text(json.dumps({'flavor': flavor, **more}))
        run('select', '--local', '--request', str(path))

    return ask


def why(run, *words):
    status, out, err = run('why', *words, '-f', 'json')
    assert status == 0, err
    return json.loads(out), err


def test_a_refusal_has_its_funnel_and_the_smallest_changes(run, select):
    select(LARGE, request_id='req-large', availability_zone='north')
    found, err = why(run, 'req-large')
    assert err == ''
    assert found['outcome'] == 'NoValidHost'
    steps = {step['filter']: step for step in found['decision']['funnel']}
    assert (steps['RamFilter']['start'], steps['RamFilter']['end']) == (2, 0)
    (rejects,) = [
        each
        for each in found['decision']['filters']
        if each['filter'] == 'RamFilter'
    ]
    assert rejects['closest']['host'] in ('compute-1', 'compute-2')
    assert found['passing_now'] == 0
    (change,) = found['relaxations']
    assert change == {
        'change': 'memory_mb 8194 in place of 99999', 'hosts': 1,
    }  # fmt: skip
    status, out, _ = run('why', 'req-large')
    assert status == 0
    assert 'What would let hosts pass now' in out
    assert 'memory_mb 8194 in place of 99999' in out


def test_a_host_is_judged_beside_the_best(run, select):
    select(FLAVOR, request_id='req-north', availability_zone='north')
    found, err = why(run, 'req-north', '--host', 'compute-3')
    assert err.startswith('What hosts were then is not recorded: compute-3 ')
    (node,) = found['nodes']
    verdicts = {each['filter']: each for each in node['filters']}
    assert not verdicts['AvailabilityZoneFilter']['passes']
    assert verdicts['RamFilter']['passes']
    amounts = {each['resource']: each for each in node['amounts']}
    assert amounts['MEMORY_MB']['asked'] == 2048
    assert amounts['MEMORY_MB']['lacks'] == 0
    assert node['weights']['best'] in ('compute-1', 'compute-2')
    (ram,) = [
        each
        for each in node['weights']['weighers']
        if each['weigher'] == 'RAMWeigher'
    ]
    assert ram['raw'] != ram['best_raw']
    status, out, _ = run('why', 'req-north', '--host', 'compute-3')
    assert status == 0
    assert 'Weights beside the best host, compute-' in out
    assert 'Amounts of compute-3' in out


def test_each_attempt_and_each_instance_can_be_named(run, select):
    for memory in (99_999, 1024):
        select({**FLAVOR, 'memory_mb': memory}, request_id='req-twice')
    assert why(run, 'req-twice', '--attempt', '1')[0]['outcome'] != 'chosen'
    last = why(run, 'req-twice')[0]
    assert last['outcome'] == 'chosen'
    assert last['passing_now'] == 4
    uuid = why_instance(run)
    words = 'req-twice', '--instance', uuid, '--host', 'compute-1'
    assert why(run, *words)[0]['nodes']
    for more, text in (
        (('--attempt', '3'), 'There is no attempt 3: 2 are kept'),
        (('--instance', f'{uuid[:-1]}{int(uuid[-1], 16) ^ 1:x}'),
         'has no instance'),
        (('--host', 'nowhere'), 'nowhere'),
    ):  # fmt: skip
        status, _, err = run('why', 'req-twice', *more)
        assert status == 1
        assert text in err
    status, _, err = run('why', 'req-none')
    assert (status, err.split(':')[0]) == (1, 'DecisionNotFound')


def why_instance(run):
    _, out, _ = run('claim', 'list', '-f', 'json')
    return json.loads(out)[0]['uuid']


def test_a_decision_on_a_zone_cannot_be_made_again(run):
    words = 'zone', 'schedule', '--local', '--name', 'example.org.'
    assert run(*words)[0] == 0
    _, out, _ = run('decision', 'list', '-f', 'json')
    (row,) = json.loads(out)
    status, _, err = run('why', row['request_id'])
    assert status == 1
    assert 'cannot be made again' in err
