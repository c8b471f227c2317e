"""RAMWeigher prefers hosts with more free memory."""

from __future__ import annotations

from scheduler_service.weighers.ram_weigher import RAMWeigher
from tests.support.plugins import inventory, raw_weights


def test_the_weight_is_the_free_memory():
    document = inventory(
        a={'memory_mb': 512},
        b={'memory_mb': 1024, 'memory_mb_used': 1000},
        c={},
    )
    assert raw_weights(RAMWeigher(), document) == {'a': 512, 'b': 24, 'c': 0}


def test_the_allocation_ratio_does_not_count():
    document = inventory(a={'memory_mb': 512, 'ram_allocation_ratio': 2.0})
    assert raw_weights(RAMWeigher(), document) == {'a': 512}


def test_a_negative_amount_counts_as_zero():
    document = inventory(a={'memory_mb': 512, 'memory_mb_used': 612})
    assert raw_weights(RAMWeigher(), document) == {'a': 0}
