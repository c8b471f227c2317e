"""Features of flavor and image need traits and resources of hosts."""

from __future__ import annotations

import pytest

from scheduler_service import errors
from scheduler_service.model import documents

FLAVOR = {'vcpus': 2, 'memory_mb': 512, 'root_gb': 1}


def request(specs=None, properties=None, check=True):
    """Return a request with extra specs and image properties."""
    parse = documents.checked_request if check else documents.request
    return parse(
        {
            'flavor': {**FLAVOR, 'extra_specs': specs or {}},
            'image': {'properties': properties or {}},
        }
    )


SEV = 'HW_CPU_X86_AMD_SEV'


@pytest.mark.parametrize(
    ('specs', 'properties', 'traits', 'amounts'),
    [
        (
            {'hw:mem_encryption': 'True'},
            {},
            {SEV},
            {'MEM_ENCRYPTION_CONTEXT': 1},
        ),
        (
            {},
            {'hw_mem_encryption': 'yes', 'hw_mem_encryption_model':
             'amd-sev-snp'},
            {f'{SEV}_SNP'},
            {'MEM_ENCRYPTION_CONTEXT': 1},
        ),
        ({'hw:mem_encryption': 'no'}, {}, set(), {}),
        (
            {'hw:tpm_version': '1.2'},
            {'hw_tpm_version': '1.2', 'hw_tpm_model': 'tpm-tis'},
            {'COMPUTE_SECURITY_TPM_1_2', 'COMPUTE_SECURITY_TPM_TIS'},
            {},
        ),
        (
            {'hw:pmem': '6GB, b-c,6GB'},
            {},
            set(),
            {'CUSTOM_PMEM_NAMESPACE_6GB': 2, 'CUSTOM_PMEM_NAMESPACE_B_C': 1},
        ),
        (
            {'os:secure_boot': 'required'},
            {'hw_firmware_type': 'uefi', 'hw_firmware_stateless': 'true'},
            {
                'COMPUTE_SECURITY_UEFI_SECURE_BOOT',
                'COMPUTE_SECURITY_STATELESS_FIRMWARE',
            },
            {},
        ),
        ({}, {'hw_firmware_stateless': 'true'}, set(), {}),
        ({}, {'os_secure_boot': 'optional'}, set(), {}),
        (
            {'hw:maxphysaddr_mode': 'passthrough'},
            {'hw_pci_numa_affinity_policy': 'socket'},
            {
                'COMPUTE_ADDRESS_SPACE_PASSTHROUGH',
                'COMPUTE_SOCKET_PCI_NUMA_AFFINITY',
            },
            {},
        ),
        (
            {'hw:tpm_version': '2.0', 'hw:tpm_secret_security': 'host'},
            {'hw_tpm_model': 'tpm-crb'},
            {
                'COMPUTE_SECURITY_TPM_2_0',
                'COMPUTE_SECURITY_TPM_CRB',
                'COMPUTE_SECURITY_TPM_SECRET_SECURITY_HOST',
            },
            {},
        ),
    ],
)  # fmt: skip
def test_features_need_traits_and_classes(specs, properties, traits, amounts):
    found = request(specs, properties)
    assert found.required_traits == traits
    plain = {'VCPU': 2, 'MEMORY_MB': 512, 'DISK_GB': 1}
    assert found.resources == {**plain, **amounts}


def test_secrets_of_a_tpm_are_a_matter_of_the_host_itself():
    found = request(
        {'hw:tpm_secret_security': 'user', 'hw:tpm_version': '2.0',
         'hw:pmem': 'x'}
    )  # fmt: skip
    below, _ = found.tree_traits
    assert found.required_traits - below == {
        'COMPUTE_SECURITY_TPM_SECRET_SECURITY_USER'
    }
    without = request({'hw:tpm_secret_security': 'user'})
    assert not without.required_traits


@pytest.mark.parametrize(
    ('specs', 'properties', 'at'),
    [
        (
            {'hw:tpm_version': '3'},
            {},
            'flavor.extra_specs.hw:tpm_version',
        ),
        (
            {'hw:tpm_version': '1.2', 'hw:tpm_model': 'tpm-crb'},
            {},
            'flavor.extra_specs.hw:tpm_model',
        ),
        ({}, {'os_secure_boot': 'yes'}, 'image.properties.os_secure_boot'),
        # Only a flavor can forbid a trait.
        (
            {},
            {'trait:CUSTOM_A': 'forbidden'},
            'image.properties.trait:CUSTOM_A',
        ),
        (
            {'hw:mem_encryption': 'true'},
            {'hw_mem_encryption': False},
            'image.properties.hw_mem_encryption',
        ),
        (
            {'hw:maxphysaddr_mode': 'emulate'},
            {'hw_maxphysaddr_mode': 'passthrough'},
            'image.properties.hw_maxphysaddr_mode',
        ),
        (
            {'hw:virtio_packed_ring': 'on'},
            {'hw_virtio_packed_ring': 'off'},
            'image.properties.hw_virtio_packed_ring',
        ),
        ({'accel:device_profile': 'p'}, {},
         'flavor.extra_specs.accel:device_profile'),
    ],
)  # fmt: skip
def test_what_means_nothing_is_refused_by_name(specs, properties, at):
    with pytest.raises(errors.InvalidRequest) as caught:
        request(specs, properties)
    assert caught.value.facts['at'] == at
    # For callers who were checked by others it is left out.
    assert request(specs, properties, check=False).resources
