"""HypervisorVersionWeigher prefers hosts with newer hypervisors."""

from __future__ import annotations

from scheduler_service.weighers.hypervisor_version_weigher import (
    HypervisorVersionWeigher,
)
from tests.support.plugins import inventory, raw_weights


def test_the_weight_is_the_version_as_a_number():
    document = inventory(
        a={'hypervisor_version': 8002000}, b={'hypervisor_version': 6001003}
    )
    weights = raw_weights(HypervisorVersionWeigher(), document)
    assert weights == {'a': 8002000, 'b': 6001003}


def test_a_host_that_reports_no_version_has_the_weight_zero():
    document = inventory(a={'hypervisor_version': 8002000}, b={})
    weights = raw_weights(HypervisorVersionWeigher(), document)
    assert weights == {'a': 8002000, 'b': 0}
