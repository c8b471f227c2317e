"""Predicates and priorities of kube-scheduler's older policy file."""

from __future__ import annotations

import pytest

from scheduler_service import errors
from scheduler_service.extenders import legacy_policy


def test_filters_come_once_when_predicates_share_them():
    assert legacy_policy.filters(
        ['PodFitsResources', 'GeneralPredicates', 'HostName']
    ) == [
        'ComputeFilter',
        'CoreFilter',
        'RamFilter',
        'DiskFilter',
        'ComputeCapabilitiesFilter',
    ]


def test_disabled_hosts_are_left_out_when_no_predicate_is_named():
    assert legacy_policy.filters([]) == ['ComputeFilter']


def test_multipliers_are_summed_when_priorities_share_a_weigher():
    names, multipliers = legacy_policy.weighers(
        [('LeastRequestedPriority', 3), ('MostRequestedPriority', 1)]
    )
    assert names == ['RAMWeigher', 'CPUWeigher']
    assert multipliers == {
        'ram_weight_multiplier': 2.0,
        'cpu_weight_multiplier': 2.0,
    }


def test_nothing_is_weighed_when_priorities_are_equal():
    assert legacy_policy.weighers([('EqualPriority', 1)]) == ([], {})


@pytest.mark.parametrize(
    'read',
    [
        lambda: legacy_policy.filters(['HostName', 'A', 'B']),
        lambda: legacy_policy.weighers([('A', 1), ('B', 1)]),
    ],
    ids=['predicates', 'priorities'],
)
def test_all_unknown_names_are_reported_when_there_is_no_equivalent(read):
    with pytest.raises(errors.ConfigurationError, match='A, B') as caught:
        read()
    assert caught.value.facts['names'] == ['A', 'B']
