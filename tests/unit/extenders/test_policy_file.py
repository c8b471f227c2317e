"""Policies and configurations that name extenders."""

import json

import pytest

from scheduler_service import errors
from scheduler_service.extenders import policy_file


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
