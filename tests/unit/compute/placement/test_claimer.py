"""Which requests can be claimed in the placement service."""

import pytest

from scheduler_service import errors
from scheduler_service.compute.placement import claimer as placement_claimer
from scheduler_service.engine.health import Health
from scheduler_service.model import documents


@pytest.fixture
def claimer():
    """A claimer that is not connected to anything."""
    made = placement_claimer.PlacementClaimer(
        None, None, Health(), None, lambda host: None, lambda hosts: None, None
    )
    yield made
    made.stop()


@pytest.mark.parametrize(
    ('key', 'value'),
    [
        ('resources1:VGPU', '1'),
        ('resources_NET:VGPU', '1'),
        ('trait1:HW_X', 'required'),
        ('member_of', 'x'),
        ('group_policy', 'none'),
        ('accel:device_profile', 'x'),
        ('hw:tpm_model', 'tpm-tis'),
        ('hw:pmem', '6GB'),
        ('hw:mem_encryption', 'true'),
        ('hw:cpu_policy', 'dedicated'),
        ('hw:cpu_policy', 'mixed'),
    ],
)
def test_what_needs_other_providers_is_refused_by_name(claimer, key, value):
    request = documents.request({'flavor': {'extra_specs': {key: value}}})
    with pytest.raises(errors.InvalidRequest, match=key):
        claimer.check(request)


def test_an_image_may_ask_for_too_much(claimer):
    request = documents.request(
        {'flavor': {}, 'image': {'properties': {'hw_cpu_policy': 'dedicated'}}}
    )
    with pytest.raises(errors.InvalidRequest, match='hw_cpu_policy'):
        claimer.check(request)


@pytest.mark.parametrize(
    ('key', 'value'),
    [
        ('resources:CUSTOM_FPGA', '1'),
        ('trait:HW_X', 'required'),
        ('hw:cpu_policy', 'shared'),
        ('hw:numa_nodes', '2'),
        ('pci_passthrough:alias', 'gpu:1'),
        ('capabilities:x', 'y'),
    ],
)
def test_other_requests_are_not(claimer, key, value):
    claimer.check(documents.request({'flavor': {'extra_specs': {key: value}}}))
