"""Known image properties, and canonical forms of their values. Stateless."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ARCHITECTURES = {
    'i386': 'i686',
    'i486': 'i686',
    'i586': 'i686',
    'x86_32': 'i686',
    'x86_32p': 'i686',
    'amd64': 'x86_64',
}
_CARDS = {
    'virtuale1000': 'e1000',
    'virtuale1000e': 'e1000e',
    'virtualpcnet32': 'pcnet',
    'virtualsriovethernetcard': 'sriov',
    'virtualvmxnet': 'vmxnet',
    'virtualvmxnet3': 'vmxnet3',
}
_HYPERVISORS = {'xapi': 'xen'}
_MODES = {'pv': 'xen', 'hv': 'hvm', 'baremetal': 'hvm'}

# Properties that compute services interpret.
KNOWN = frozenset(
    [
        'hw_architecture',
        'hw_auto_disk_config',
        'hw_boot_menu',
        'hw_cdrom_bus',
        'hw_cpu_cores',
        'hw_cpu_max_cores',
        'hw_cpu_max_sockets',
        'hw_cpu_max_threads',
        'hw_cpu_policy',
        'hw_cpu_realtime_mask',
        'hw_cpu_sockets',
        'hw_cpu_thread_policy',
        'hw_cpu_threads',
        'hw_device_id',
        'hw_disk_bus',
        'hw_disk_type',
        'hw_emulation_architecture',
        'hw_ephemeral_encryption',
        'hw_ephemeral_encryption_format',
        'hw_ephemeral_encryption_secret_uuid',
        'hw_firmware_stateless',
        'hw_firmware_type',
        'hw_floppy_bus',
        'hw_input_bus',
        'hw_ipxe_boot',
        'hw_locked_memory',
        'hw_machine_type',
        'hw_maxphysaddr_bits',
        'hw_maxphysaddr_mode',
        'hw_mem_encryption',
        'hw_mem_encryption_model',
        'hw_mem_page_size',
        'hw_numa_cpus',
        'hw_numa_mem',
        'hw_numa_nodes',
        'hw_pci_numa_affinity_policy',
        'hw_pmu',
        'hw_pointer_model',
        'hw_qemu_guest_agent',
        'hw_redirected_usb_ports',
        'hw_rescue_bus',
        'hw_rescue_device',
        'hw_rng_model',
        'hw_scsi_model',
        'hw_serial_port_count',
        'hw_sound_model',
        'hw_time_hpet',
        'hw_tpm_model',
        'hw_tpm_secret_security',
        'hw_tpm_version',
        'hw_usb_model',
        'hw_video_model',
        'hw_video_ram',
        'hw_vif_model',
        'hw_vif_multiqueue_enabled',
        'hw_viommu_model',
        'hw_virtio_packed_ring',
        'hw_vm_mode',
        'hw_watchdog_action',
        'img_bdm_v2',
        'img_bittorrent',
        'img_block_device_mapping',
        'img_cache_in_nova',
        'img_compression_level',
        'img_config_drive',
        'img_hide_hypervisor_id',
        'img_hv_requested_version',
        'img_hv_type',
        'img_linked_clone',
        'img_mappings',
        'img_owner_id',
        'img_root_device_name',
        'img_signature',
        'img_signature_certificate_uuid',
        'img_signature_hash_method',
        'img_signature_key_type',
        'img_use_agent',
        'img_version',
        'os_admin_user',
        'os_command_line',
        'os_distro',
        'os_require_quiesce',
        'os_secure_boot',
        'os_skip_agent_inject_files_at_boot',
        'os_skip_agent_inject_ssh',
        'os_type',
    ]
)


# What a compute service keeps of an image beside its properties.
_PREFIX = 'image_'
_NOT_PROPERTIES = frozenset(
    ('base_image_ref', 'container_format', 'disk_format', 'min_disk',
     'min_ram')
)  # fmt: skip
_BOOLEANS = {
    'true': True, 'yes': True, 'on': True,
    'false': False, 'no': False, 'off': False,
}  # fmt: skip


def of_system_metadata(metadata: Any) -> dict[str, Any]:
    """Return what an instance's metadata says of its image.

    Booleans have the form that they have in requests of compute services.

    :param metadata: as a compute service keeps it; None: it is not known
    :return: as ``image_meta`` of an instance: empty if nothing is known
    """
    if not isinstance(metadata, dict):
        return {}
    properties = {
        key.removeprefix(_PREFIX): _BOOLEANS.get(str(value).lower(), value)
        for key, value in metadata.items()
        if key.startswith(_PREFIX) and value is not None
    }
    properties = {
        key: value
        for key, value in properties.items()
        if key not in _NOT_PROPERTIES
    }
    return {'properties': properties} if properties else {}


def first(properties: Mapping[str, Any], *names: str) -> Any:
    """Return the first property of *names* that is not absent or empty."""
    for name in names:
        if properties.get(name):
            return properties[name]
    return None


def architecture(value: str) -> str:
    """Return an architecture's canonical name; else it in lower case."""
    return _ARCHITECTURES.get(value.lower(), value.lower())


def card(value: str) -> str:
    """Return a network card's canonical name."""
    return _CARDS.get(value.lower(), value.lower())


def hypervisor(value: str) -> str:
    """Return a hypervisor type's canonical name."""
    return _HYPERVISORS.get(value.lower(), value.lower())


def mode(value: str) -> str:
    """Return a virtual machine mode's canonical name."""
    return _MODES.get(value.lower(), value.lower())
