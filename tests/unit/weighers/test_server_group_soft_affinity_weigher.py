"""ServerGroupSoftAffinityWeigher prefers hosts with more members."""

from __future__ import annotations

import pytest

from scheduler_service.weighers.server_group_soft_affinity_weigher import (
    ServerGroupSoftAffinityWeigher,
)
from tests.support.plugins import (
    GROUP,
    instance,
    inventory,
    raw_weights,
    server_group,
)

REQUEST = {'instance_group': GROUP}


def hosts_with(*groups):
    return inventory(
        a={},
        b={},
        c={},
        instances=(instance(1, 'a'), instance(2, 'a'), instance(3, 'b')),
        groups=groups,
    )


def test_the_weight_is_the_number_of_members():
    document = hosts_with(server_group('soft-affinity', 1, 2, 3, 9))
    weights = raw_weights(ServerGroupSoftAffinityWeigher(), document, REQUEST)
    assert weights == {'a': 2, 'b': 1, 'c': 0}


@pytest.mark.parametrize(
    'policy', ['affinity', 'anti-affinity', 'soft-anti-affinity']
)
def test_it_has_no_opinion_on_other_policies(policy):
    document = hosts_with(server_group(policy, 1))
    weights = raw_weights(ServerGroupSoftAffinityWeigher(), document, REQUEST)
    assert weights is None


def test_it_has_no_opinion_without_a_group():
    document = hosts_with(server_group('soft-affinity', 1))
    assert raw_weights(ServerGroupSoftAffinityWeigher(), document) is None
