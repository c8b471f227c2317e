"""Features of flavor and image for which a host needs traits or resources.

The traits and classes are those that compute services report. An extra spec
of the flavor goes before the property of the image. Stateless.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

_TRUE = frozenset(('1', 't', 'true', 'on', 'y', 'yes'))
_TPM_MODELS = {'tpm-crb': 'COMPUTE_SECURITY_TPM_CRB'}
_TPM_VERSIONS = {'2.0': 'COMPUTE_SECURITY_TPM_2_0'}
_TPM_SECRETS = {
    owner: f'COMPUTE_SECURITY_TPM_SECRET_SECURITY_{owner.upper()}'
    for owner in ('user', 'host', 'deployment')
}
_ENCRYPTION = {
    'amd-sev-es': 'HW_CPU_X86_AMD_SEV_ES',
    'amd-sev-snp': 'HW_CPU_X86_AMD_SEV_SNP',
    'intel-tdx': 'HW_CPU_X86_INTEL_TDX',
}
_ADDRESS_SPACES = {
    'passthrough': 'COMPUTE_ADDRESS_SPACE_PASSTHROUGH',
    'emulate': 'COMPUTE_ADDRESS_SPACE_EMULATED',
}


def resources(
    specs: Mapping[str, str], properties: Mapping[str, Any]
) -> dict[str, int]:
    """Return resource class -> amount, without CPUs, memory and disk."""
    amounts: Counter[str] = Counter()
    for label in specs.get('hw:pmem', '').split(','):
        if label.strip():
            name = re.sub(r'[^0-9A-Z]+', '_', label.strip().upper())
            amounts[f'CUSTOM_PMEM_NAMESPACE_{name}'] += 1
    if _encrypts_memory(specs, properties):
        amounts['MEM_ENCRYPTION_CONTEXT'] += 1
    return dict(amounts)


def root_traits(specs: Mapping[str, str]) -> list[str]:
    """Return the traits that the host's own provider needs."""
    secrets = _TPM_SECRETS.get(specs.get('hw:tpm_secret_security', ''))
    return [secrets] if secrets else []


def traits(
    specs: Mapping[str, str], properties: Mapping[str, Any]
) -> list[str]:
    """Return the traits that a provider of the instance needs."""

    def value(name: str, scope: str = 'hw') -> str:
        stated: Any = specs.get(f'{scope}:{name}')
        return str(stated or properties.get(f'{scope}_{name}') or '')

    needed = []
    if _encrypts_memory(specs, properties):
        model = value('mem_encryption_model')
        needed.append(_ENCRYPTION.get(model, 'HW_CPU_X86_AMD_SEV'))
    if value('maxphysaddr_mode') in _ADDRESS_SPACES:
        needed.append(_ADDRESS_SPACES[value('maxphysaddr_mode')])
    version = value('tpm_version')
    if version:
        model = value('tpm_model')
        needed += [
            _TPM_MODELS.get(model, 'COMPUTE_SECURITY_TPM_TIS'),
            _TPM_VERSIONS.get(version, 'COMPUTE_SECURITY_TPM_1_2'),
        ]
    if value('pci_numa_affinity_policy') == 'socket':
        needed.append('COMPUTE_SOCKET_PCI_NUMA_AFFINITY')
    if value('secure_boot', 'os') == 'required':
        needed.append('COMPUTE_SECURITY_UEFI_SECURE_BOOT')
    if _is_true(properties.get('hw_firmware_stateless')):
        needed.append('COMPUTE_SECURITY_STATELESS_FIRMWARE')
    return needed


def _encrypts_memory(
    specs: Mapping[str, str], properties: Mapping[str, Any]
) -> bool:
    return _is_true(specs.get('hw:mem_encryption')) or _is_true(
        properties.get('hw_mem_encryption')
    )


def _is_true(value: Any) -> bool:
    return str(value).strip().lower() in _TRUE
