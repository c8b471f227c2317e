"""NumInstancesWeigher weighs hosts by their number of instances."""

from __future__ import annotations

from scheduler_service.settings import Settings
from scheduler_service.weighers.num_instances_weigher import (
    NumInstancesWeigher,
)
from tests.support.plugins import instance, inventory, raw_weights


def test_the_weight_is_the_number_of_instances():
    document = inventory(
        a={'num_instances': 2}, b={}, c={}, instances=(instance(1, 'b'),)
    )
    weights = raw_weights(NumInstancesWeigher(), document)
    assert weights == {'a': 2, 'b': 1, 'c': 0}


def test_it_is_off_by_default():
    assert NumInstancesWeigher().multiplier(Settings()) == 0.0
