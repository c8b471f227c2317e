"""PCIWeigher prefers hosts with fewer free PCI devices."""

import pytest

from scheduler_service.weighers.host_weigher import PCIWeigher
from tests.support.plugins import inventory, raw_weights


@pytest.mark.parametrize(
    ('counts', 'weight'),
    [
        ((), 100),
        ((3,), 97),
        ((3, 2), 95),
        ((99,), 1),
        # More devices than 99 count as 99.
        ((60, 60), 1),
        ((0,), 100),
    ],
)
def test_the_weight_is_100_less_the_devices(counts, weight):
    pools = [{'count': count} for count in counts]
    document = inventory(a={'pci_device_pools': pools})
    assert raw_weights(PCIWeigher(), document) == {'a': weight}


def test_the_request_does_not_matter():
    document = inventory(a={'pci_device_pools': [{'count': 1}]}, b={})
    request = {'flavor': {'extra_specs': {'pci_passthrough:alias': 'nic:1'}}}
    weights = raw_weights(PCIWeigher(), document, request)
    assert weights == {'a': 99, 'b': 100}
