"""Features of flavor and image for which a host needs traits or resources.

The traits and classes are those that compute services report. Stateless.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from scheduler_service.compute import wire

_TRUE = frozenset(('1', 't', 'true', 'on', 'y', 'yes'))
_TPM_MODELS = {'tpm-crb': 'COMPUTE_SECURITY_TPM_CRB'}
_TPM_VERSIONS = {'2.0': 'COMPUTE_SECURITY_TPM_2_0'}
_ENCRYPTION = {'amd-sev-es': 'HW_CPU_X86_AMD_SEV_ES'}
_ADDRESS_SPACES = {
    'passthrough': 'COMPUTE_ADDRESS_SPACE_PASSTHROUGH',
    'emulate': 'COMPUTE_ADDRESS_SPACE_EMULATED',
}


class Features:
    """What flavor and image ask for, beside CPUs, memory and disk.

    :param specs: extra specs of the flavor
    :param image: its properties go after the extra specs
    """

    def __init__(
        self, specs: Mapping[str, str], image: wire.Image | None
    ) -> None:
        self._specs = specs
        self._properties = (image.properties if image else None) or {}

    def resources(self) -> dict[str, int]:
        """Return resource class -> amount."""
        found: Counter[str] = Counter()
        for label in self._specs.get('hw:pmem', '').split(','):
            if label.strip():
                name = re.sub(r'[^0-9A-Z]+', '_', label.strip().upper())
                found[f'CUSTOM_PMEM_NAMESPACE_{name}'] += 1
        if self._encrypts_memory():
            found['MEM_ENCRYPTION_CONTEXT'] += 1
        return dict(found)

    def traits(self) -> list[str]:
        """Return the traits that a host needs."""
        found = [
            self._encryption_trait(),
            _ADDRESS_SPACES.get(self._text('maxphysaddr_mode')),
            *self._tpm_traits(),
        ]
        if self._secure_boot() == 'required':
            found.append('COMPUTE_SECURITY_UEFI_SECURE_BOOT')
        if _is_true(self._properties.get('hw_firmware_stateless')):
            found.append('COMPUTE_SECURITY_STATELESS_FIRMWARE')
        return [name for name in found if name]

    def _encrypts_memory(self) -> bool:
        return _is_true(self._specs.get('hw:mem_encryption')) or _is_true(
            self._properties.get('hw_mem_encryption')
        )

    def _encryption_trait(self) -> str | None:
        if not self._encrypts_memory():
            return None
        model = self._text('mem_encryption_model')
        return _ENCRYPTION.get(model, 'HW_CPU_X86_AMD_SEV')

    def _tpm_traits(self) -> tuple[str, ...]:
        version = self._text('tpm_version')
        if not version:
            return ()
        return (
            _TPM_MODELS.get(
                self._text('tpm_model'), 'COMPUTE_SECURITY_TPM_TIS'
            ),
            _TPM_VERSIONS.get(version, 'COMPUTE_SECURITY_TPM_1_2'),
        )

    def _secure_boot(self) -> str:
        stated: Any = self._specs.get('os:secure_boot')
        return str(stated or self._properties.get('os_secure_boot') or '')

    def _text(self, name: str) -> str:
        """Return the extra spec ``hw:NAME``, else the property ``hw_NAME``."""
        stated: Any = self._specs.get(f'hw:{name}')
        return str(stated or self._properties.get(f'hw_{name}') or '')


def _is_true(value: Any) -> bool:
    return str(value).strip().lower() in _TRUE
