"""IoOpsWeigher weighs hosts by their I/O operations."""

from __future__ import annotations

from scheduler_service.settings import Settings
from scheduler_service.weighers.io_ops_weigher import IoOpsWeigher
from tests.support.plugins import inventory, raw_weights


def test_the_weight_is_the_number_of_operations():
    document = inventory(a={'num_io_ops': 2}, b={})
    assert raw_weights(IoOpsWeigher(), document) == {'a': 2, 'b': 0}


def test_by_default_fewer_operations_are_better():
    assert IoOpsWeigher().multiplier(Settings()) == -1.0
