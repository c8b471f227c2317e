"""Policies and configurations that name extenders."""

import json

import pytest

from scheduler_service import errors
from scheduler_service.extenders import dispatcher, policy_file
from tests.support.services import new_conf


def test_older_policy_is_read_when_its_keys_differ_in_case():
    policy = policy_file.read(json.dumps({
        'Kind': 'x', 'kind': 'Policy', 'extenders': [{
            'URLPREFIX': 'http://a/', 'FilterVerb': 'f',
            'HttpTimeout': 30000000000, 'EnableHttps': True,
            'ignoreable': True, 'managedResources': None,
            'TlsConfig': {'Insecure': True, 'ServerName': 'b'},
        }],
    }).replace('"Kind": "x", ', '').encode(), 'p')  # fmt: skip
    (extender,) = policy.extenders
    assert extender.url('f') == 'http://a/f'
    assert (extender.timeout, extender.enable_https) == (30.0, True)
    assert extender.tls.server_name == 'b'
    assert policy.unknown == ['extenders[0].ignoreable']


@pytest.mark.parametrize(
    ('url', 'shown'),
    [
        ('http://h:1/ext', 'http://h:1/ext'),
        ('https://user:pass@h/ext', 'https://h/ext'),
        ('https://user:p@ss@h:1/ext', 'https://h:1/ext'),
        ('https://user:p/ss?@h', 'https://h'),
        ('https://h/ext?token=secret', 'https://h/ext'),
    ],
)
def test_label_has_no_credentials_when_the_url_has_some(url, shown):
    label = policy_file.Extender(url).label
    assert label == shown


def test_filters_come_once_when_predicates_share_them():
    assert policy_file.filters(
        ['PodFitsResources', 'GeneralPredicates', 'HostName']
    ) == [
        'ComputeFilter',
        'CoreFilter',
        'RamFilter',
        'DiskFilter',
        'ComputeCapabilitiesFilter',
    ]


def test_disabled_hosts_are_left_out_when_no_predicate_is_named():
    assert policy_file.filters([]) == ['ComputeFilter']


def test_multipliers_are_summed_when_priorities_share_a_weigher():
    names, multipliers = policy_file.weighers(
        [('LeastRequestedPriority', 3), ('MostRequestedPriority', 1)]
    )
    assert names == ['RAMWeigher', 'CPUWeigher']
    assert multipliers == {
        'ram_weight_multiplier': 2.0,
        'cpu_weight_multiplier': 2.0,
    }


def test_nothing_is_weighed_when_priorities_are_equal():
    assert policy_file.weighers([('EqualPriority', 1)]) == ([], {})


@pytest.mark.parametrize(
    'read',
    [
        lambda: policy_file.filters(['HostName', 'A', 'B']),
        lambda: policy_file.weighers([('A', 1), ('B', 1)]),
    ],
    ids=['predicates', 'priorities'],
)
def test_all_unknown_names_are_reported_when_there_is_no_equivalent(read):
    with pytest.raises(errors.ConfigurationError, match='A, B') as caught:
        read()
    assert caught.value.facts['names'] == ['A', 'B']


POLICY = {
    'kind': 'Policy',
    'predicates': [
        {'name': 'HostName'},
        {'name': 'NoDiskConflict'},
        {'name': 'RackLabel', 'argument': {'labelsPresence': {}}},
        {'name': 'PodFitsResources'},
    ],
    'priorities': [
        {'name': 'ImageLocalityPriority', 'weight': 2},
        {'name': 'MostRequestedPriority', 'weight': 3},
        {'name': 'NoDiskConflict', 'weight': 1},
    ],
}


def test_unknown_predicates_are_left_out_where_that_is_wanted(
    tmp_path, caplog
):
    path = tmp_path / 'policy.json'
    path.write_text(json.dumps(POLICY))
    options = {'extender__policy_file': str(path)}
    with pytest.raises(errors.ConfigurationError, match='NoDiskConflict'):
        dispatcher.policy(new_conf(**options))
    found = dispatcher.policy(
        new_conf(**options, extender__ignore_unknown_predicates=True)
    )
    assert found.filters == [
        'ComputeFilter',
        'CoreFilter',
        'RamFilter',
        'DiskFilter',
    ]
    assert found.multipliers == {
        'ram_weight_multiplier': -3.0,
        'cpu_weight_multiplier': -3.0,
    }
    assert [record.args[1] for record in caplog.records] == [
        'NoDiskConflict',
        'RackLabel',
        'ImageLocalityPriority',
    ]


EXTENDER = {
    'urlPrefix': 'http://a', 'filterVerb': 'f', 'prioritizeVerb': 'p',
    'weight': 2, 'bindVerb': 'b', 'preemptVerb': 'e', 'enableHTTPS': True,
    'nodeCacheCapable': True, 'ignorable': True,
    'tlsConfig': {'insecure': True},
    'managedResources': [
        {'name': 'scheduler-service.local/FPGA'},
        {'name': 'example.com/fpga', 'ignoredByScheduler': True},
    ],
}  # fmt: skip
OF_EXTENDERS = [
    'extenders[0].preemptVerb: has no effect here',
    'extenders[0].managedResources[1].ignoredByScheduler: has no effect here',
]


@pytest.mark.parametrize(
    ('policy', 'unused'),
    [
        ({'kind': 'Policy', 'apiVersion': 'v1',
          'AlwaysCheckAllPredicates': True,
          'hardPodAffinitySymmetricWeight': 1,
          'predicates': [{'name': 'HostName', 'weight': 3}],
          'extenders': [{**EXTENDER, 'apiVersion': 'v1',
                         'httpTimeout': 10**9}]},
         ['predicates[0].weight: unknown key, ignored',
          'AlwaysCheckAllPredicates: has no effect here',
          'hardPodAffinitySymmetricWeight: has no effect here',
          *OF_EXTENDERS]),
        ({'kind': 'KubeSchedulerConfiguration',
          'apiVersion': 'kubescheduler.config.k8s.io/v1',
          'profiles': [], 'percentageOfNodesToScore': 10,
          'extenders': [{**EXTENDER, 'httpTimeout': '1s'}]},
         ['profiles: has no effect here',
          'percentageOfNodesToScore: has no effect here', *OF_EXTENDERS]),
        ({'kind': 'Policy', 'extenders': [{'urlPrefix': 'http://a'}]}, []),
    ],
)  # fmt: skip
def test_each_key_without_an_effect_is_named(tmp_path, caplog, policy, unused):
    path = tmp_path / 'policy.json'
    path.write_text(json.dumps(policy))
    dispatcher.policy(new_conf(extender__policy_file=str(path)))
    assert caplog.messages == [f'{path}: {text}' for text in unused]


def test_arguments_of_known_predicates_are_refused():
    policy = {'predicates': [{'name': 'HostName', 'argument': {'a': 1}}]}
    with pytest.raises(errors.ConfigurationError, match='with an argument'):
        policy_file.read(json.dumps(policy).encode(), 'p')


@pytest.mark.parametrize(
    'name', ['cpu', 'kubernetes.io/x', 'a-kubernetes.io/x', 'requests.a/x']
)
def test_resources_that_are_not_extended_are_refused(name):
    extender = {'urlPrefix': 'http://a', 'managedResources': [{'name': name}]}
    policy = {'extenders': [extender]}
    with pytest.raises(errors.ConfigurationError, match='not an extended'):
        policy_file.read(json.dumps(policy).encode(), 'p')
