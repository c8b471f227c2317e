"""BuildFailureWeigher avoids hosts with failed builds."""

from __future__ import annotations

from scheduler_service.settings import Settings
from scheduler_service.weighers.build_failure_weigher import (
    BuildFailureWeigher,
)
from tests.support.plugins import inventory, raw_weights


def test_the_weight_is_the_number_of_failures():
    document = inventory(a={'failed_builds': 2}, b={})
    assert raw_weights(BuildFailureWeigher(), document) == {'a': 2, 'b': 0}


def test_failures_count_against_a_host_with_a_large_multiplier():
    assert BuildFailureWeigher.sign == -1.0
    assert BuildFailureWeigher().multiplier(Settings()) == 1_000_000.0
