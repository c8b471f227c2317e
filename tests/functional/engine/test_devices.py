"""Requests for PCI devices where no filter looks for these."""

import pytest

from scheduler_service import errors
from tests.support import services
from tests.support.documents import CONTEXT, INVENTORY, SMALL

ALIAS = '{"vendor_id": "8086", "product_id": "1520", "name": "nic"}'
SPECS = {'pci_passthrough:alias': 'nic:1'}
REQUESTS = (
    ({'flavor': {**SMALL, 'extra_specs': SPECS}},
     'flavor.extra_specs.pci_passthrough:alias'),
    ({'flavor': SMALL,
      'pci_requests': [{'alternatives': [{'vendor_id': '8086'}]}]},
     'pci_requests'),
)  # fmt: skip


@pytest.fixture(scope='module')
def service(tmp_path_factory):
    with services.shared(
        tmp_path_factory.mktemp('devices'),
        inventory=INVENTORY,
        pci__alias=[ALIAS],
    ) as service:
        yield service


@pytest.mark.parametrize(('request_', 'place'), REQUESTS)
def test_devices_that_no_filter_looks_for_are_refused(
    service, request_, place
):
    for call in (
        lambda: service.client.select_destinations(CONTEXT, request_),
        lambda: service.client.explain(CONTEXT, request_),
    ):
        with pytest.raises(errors.InvalidRequest) as caught:
            call()
        assert caught.value.facts['unsupported'] == place
        assert 'PciPassthroughFilter is not enabled' in str(caught.value)
