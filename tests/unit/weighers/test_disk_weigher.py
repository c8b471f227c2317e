"""DiskWeigher prefers hosts with more free disk."""

from __future__ import annotations

from scheduler_service.weighers.disk_weigher import DiskWeigher
from tests.support.plugins import inventory, raw_weights


def test_the_weight_is_the_free_disk_in_mb():
    document = inventory(
        a={'local_gb': 2},
        b={'local_gb': 2, 'local_gb_used': 1},
        c={},
    )
    weights = raw_weights(DiskWeigher(), document)
    assert weights == {'a': 2048, 'b': 1024, 'c': 0}


def test_disk_available_least_counts_where_it_is_less():
    document = inventory(
        a={'local_gb': 4, 'disk_available_least': 1},
        b={'local_gb': 4, 'local_gb_used': 2, 'disk_available_least': 3},
    )
    assert raw_weights(DiskWeigher(), document) == {'a': 1024, 'b': 2048}


def test_a_negative_amount_counts_as_zero():
    document = inventory(a={'local_gb': 1, 'disk_available_least': -1})
    assert raw_weights(DiskWeigher(), document) == {'a': 0}
