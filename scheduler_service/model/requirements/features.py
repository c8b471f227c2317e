"""Features of flavor and image for which a host needs traits or resources.

Traits have the names that compute services report.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from scheduler_service.model.image_properties import (
    architecture,
    card,
    first,
)
from scheduler_service.model.requirements.specs import Specs, is_true

_TPM = 'COMPUTE_SECURITY_TPM_'
_TPM_MODELS = {'tpm-tis': f'{_TPM}TIS', 'tpm-crb': f'{_TPM}CRB'}
_TPM_VERSIONS = {'1.2': f'{_TPM}1_2', '2.0': f'{_TPM}2_0'}
_TPM_SECRETS = {
    owner: f'{_TPM}SECRET_SECURITY_{owner.upper()}'
    for owner in ('user', 'host', 'deployment')
}
_ENCRYPTION = {
    'amd-sev': 'HW_CPU_X86_AMD_SEV',
    'amd-sev-es': 'HW_CPU_X86_AMD_SEV_ES',
    'amd-sev-snp': 'HW_CPU_X86_AMD_SEV_SNP',
    'intel-tdx': 'HW_CPU_X86_INTEL_TDX',
}
_ADDRESS_SPACES = {
    'passthrough': 'COMPUTE_ADDRESS_SPACE_PASSTHROUGH',
    'emulate': 'COMPUTE_ADDRESS_SPACE_EMULATED',
}
_SECURE_BOOT = ('required', 'disabled', 'optional')
DISTANCES = ('legacy', 'preferred', 'required', 'socket')
_NAMES = (
    'mem_encryption', 'tpm_version', 'maxphysaddr_mode',
    'pci_numa_affinity_policy',
)  # fmt: skip
# Without any of these a request has no feature, as most requests.
_SPECS = frozenset(
    (*(f'hw:{name}' for name in _NAMES), 'hw:pmem', 'os:secure_boot',
     'hw:tpm_secret_security')
)  # fmt: skip
_PROPERTIES = frozenset(
    (*(f'hw_{name}' for name in _NAMES), 'os_secure_boot',
     'hw_firmware_stateless')
)  # fmt: skip
_DEVICES = (
    'virtio_packed_ring', 'sound_model', 'ephemeral_encryption',
    'ephemeral_encryption_format',
)  # fmt: skip
_DEVICE_SPECS = frozenset(
    ('accel:device_profile', *(f'hw:{name}' for name in _DEVICES))
)
_DEVICE_PROPERTIES = frozenset(f'hw_{name}' for name in _DEVICES)
# Image property -> prefix of the trait that it stands for.
_PROPERTY_TRAITS = {
    'hw_cdrom_bus': 'COMPUTE_STORAGE_BUS_',
    'hw_disk_bus': 'COMPUTE_STORAGE_BUS_',
    'hw_video_model': 'COMPUTE_GRAPHICS_MODEL_',
    'hw_vif_model': 'COMPUTE_NET_VIF_MODEL_',
    'hw_architecture': 'HW_ARCH_',
    'hw_emulation_architecture': 'COMPUTE_ARCH_',
}
# What hosts can emulate: other architectures have no trait.
_EMULATED = frozenset(
    ('', 'aarch64', 'mipsel', 'ppc64le', 'riscv64', 's390x', 'x86_64')
)


class Features(NamedTuple):
    """What features need.

    :ivar resources: amount of each resource class
    :ivar traits: of any provider of the instance
    :ivar root_traits: of the host's own provider
    :ivar known_traits: of the host's own provider, once some host reports a
        trait of the same family: compute services of earlier releases report
        none
    """

    resources: Mapping[str, int] = {}
    traits: frozenset[str] = frozenset()
    root_traits: frozenset[str] = frozenset()
    known_traits: frozenset[str] = frozenset()


_NONE = Features()


def features(specs: Specs) -> Features:
    """Return what the features of a flavor and an image need.

    :raises InvalidRequest: a value means nothing, or flavor and image differ
    """
    if _SPECS.isdisjoint(specs.extra) and _PROPERTIES.isdisjoint(specs.image):
        return _NONE
    resources: Counter[str] = Counter()
    for label in specs.extra.get('hw:pmem', '').split(','):
        if label.strip():
            name = re.sub(r'[^0-9A-Z]+', '_', label.strip().upper())
            resources[f'CUSTOM_PMEM_NAMESPACE_{name}'] += 1
    needed = []
    if specs.is_true('mem_encryption'):
        resources['MEM_ENCRYPTION_CONTEXT'] = 1
        model = specs.value('mem_encryption_model', _ENCRYPTION)
        needed.append(_ENCRYPTION[model or 'amd-sev'])
    mode = specs.value('maxphysaddr_mode', _ADDRESS_SPACES)
    if mode:
        needed.append(_ADDRESS_SPACES[mode])
    version = specs.value('tpm_version', _TPM_VERSIONS)
    secrets = specs.extra.get('hw:tpm_secret_security', '')
    if version:
        models = _TPM_MODELS if version == '2.0' else ('tpm-tis',)
        model = specs.value('tpm_model', models) or 'tpm-tis'
        needed += [_TPM_MODELS[model], _TPM_VERSIONS[version]]
    if specs.value('pci_numa_affinity_policy', DISTANCES) == 'socket':
        needed.append('COMPUTE_SOCKET_PCI_NUMA_AFFINITY')
    if specs.value('secure_boot', _SECURE_BOOT, 'os') == 'required':
        needed.append('COMPUTE_SECURITY_UEFI_SECURE_BOOT')
    image = specs.image
    if image.get('hw_firmware_type') == 'uefi' and is_true(
        image.get('hw_firmware_stateless')
    ):
        needed.append('COMPUTE_SECURITY_STATELESS_FIRMWARE')
    stated = {_TPM_SECRETS[secrets]} if secrets in _TPM_SECRETS else ()
    return Features(
        resources,
        frozenset(needed),
        frozenset(stated if version else ()),
        frozenset({_TPM_SECRETS['user']} if version and not secrets else ()),
    )


def device_traits(specs: Specs) -> list[str]:
    """Return the traits of the host's own provider that devices need.

    :raises InvalidRequest: flavor and image differ
    """
    if _DEVICE_SPECS.isdisjoint(specs.extra) and _DEVICE_PROPERTIES.isdisjoint(
        specs.image
    ):
        return []
    needed = []
    if specs.extra.get('accel:device_profile'):
        needed.append('COMPUTE_ACCELERATORS')
    if specs.is_true('virtio_packed_ring'):
        needed.append('COMPUTE_NET_VIRTIO_PACKED')
    if specs.value('sound_model') == 'virtio':
        needed.append('COMPUTE_SOUND_MODEL_VIRTIO')
    if specs.is_true('ephemeral_encryption'):
        trait = 'COMPUTE_EPHEMERAL_ENCRYPTION'
        needed.append(trait)
        encryption = specs.value('ephemeral_encryption_format')
        if encryption:
            needed.append(f'{trait}_{_trait_name(encryption)}')
    return needed


def property_traits(specs: Specs) -> list[str]:
    """Return the traits for the devices that an image's properties name.

    As in compute services, there are none where one property stands for a
    trait that does not exist: all models of IOMMUs, and some architectures.
    """
    image = specs.image
    own = first(image, 'hw_architecture', 'architecture') or ''
    emulated = image.get('hw_emulation_architecture') or ''
    named = {
        **image,
        'hw_vif_model': card(str(image.get('hw_vif_model') or '')),
        'hw_architecture': architecture(str(own)),
        'hw_emulation_architecture': architecture(str(emulated)),
    }
    if (
        named.get('hw_viommu_model')
        or named['hw_architecture'] == 'armv7l'
        or named['hw_emulation_architecture'] not in _EMULATED
    ):
        return []
    return [
        prefix + _trait_name(named[name])
        for name, prefix in _PROPERTY_TRAITS.items()
        if named.get(name)
    ]


def _trait_name(value: Any) -> str:
    """Return a value as names of traits spell it: ``RAW_ISO``."""
    return str(value).upper().replace('-', '_')
