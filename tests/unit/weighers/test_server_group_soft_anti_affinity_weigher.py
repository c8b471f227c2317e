"""ServerGroupSoftAntiAffinityWeigher prefers hosts with fewer members."""

from __future__ import annotations

import pytest

from scheduler_service.weighers.server_group_soft_anti_affinity_weigher import (  # noqa: E501
    ServerGroupSoftAntiAffinityWeigher,
)
from tests.support.plugins import (
    GROUP,
    instance,
    inventory,
    raw_weights,
    server_group,
)


def weights(*groups):
    document = inventory(
        a={},
        b={},
        c={},
        instances=(instance(1, 'a'), instance(2, 'a'), instance(3, 'b')),
        groups=groups,
    )
    request = {'instance_group': GROUP}
    return raw_weights(ServerGroupSoftAntiAffinityWeigher(), document, request)


def test_the_weight_is_minus_the_number_of_members():
    group = server_group('soft-anti-affinity', 1, 2, 3)
    assert weights(group) == {'a': -2, 'b': -1, 'c': 0}


@pytest.mark.parametrize(
    'policy', ['affinity', 'anti-affinity', 'soft-affinity']
)
def test_it_has_no_opinion_on_other_policies(policy):
    assert weights(server_group(policy, 1)) is None


def test_it_has_no_opinion_without_a_group():
    assert weights() is None
