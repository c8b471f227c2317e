"""CPUWeigher prefers hosts with more vCPUs left."""

from __future__ import annotations

from scheduler_service.weighers.cpu_weigher import CPUWeigher
from tests.support.plugins import inventory, raw_weights


def test_the_weight_is_what_is_left_under_the_allocation_ratio():
    document = inventory(
        a={'vcpus': 4, 'vcpus_used': 3, 'cpu_allocation_ratio': 1.5},
        b={'vcpus': 4, 'vcpus_used': 3},
        c={},
    )
    weights = raw_weights(CPUWeigher(), document, cpu_allocation_ratio=2.0)
    assert weights == {'a': 3, 'b': 5, 'c': 0}


def test_a_negative_amount_counts_as_zero():
    document = inventory(
        a={'vcpus': 1, 'vcpus_used': 3, 'cpu_allocation_ratio': 1.0}
    )
    assert raw_weights(CPUWeigher(), document) == {'a': 0}
