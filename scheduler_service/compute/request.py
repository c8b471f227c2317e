"""Translates a RequestSpec of the compute service into a request of ours.

A field that the engine does not support is refused by name, unless it does
not matter for the place of an instance. Stateless; any thread may call the
functions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from scheduler_service import errors
from scheduler_service.compute import wire
from scheduler_service.model import Request, ServerGroup, documents
from scheduler_service.model.inventory import Count, ResourceClass, Uuid
from scheduler_service.model.limits import NAME_LENGTH
from scheduler_service.model.request import (
    MAX_GROUPS,
    MAX_INSTANCES,
    Destination,
    Flavor,
    GuestNuma,
    GuestNumaCell,
    Image,
    PciRequest,
    ResourceGroup,
    Retry,
)

_PAGE_SIZES = {-1: 'small', -2: 'large', -3: 'any'}
_HYPERTHREADS = 'HW_CPU_HYPERTHREADING'
_THREADS = {'isolate': 'forbidden', 'require': 'required'}
_GROUPED = re.compile(r'(resources|trait)([a-zA-Z0-9_-]{1,64}):(.+)')
# The compute service leaves out all but these and custom ones.
_CLASSES = frozenset(
    ('VCPU', 'PCPU', 'MEMORY_MB', 'DISK_GB', 'VGPU', 'VGPU_DISPLAY_HEAD',
     'PGPU', 'FPGA', 'PCI_DEVICE', 'SRIOV_NET_VF', 'MEM_ENCRYPTION_CONTEXT',
     'IPV4_ADDRESS', 'NUMA_SOCKET', 'NUMA_CORE', 'NUMA_THREAD',
     'NUMA_MEMORY_MB', 'NET_BW_EGR_KILOBIT_PER_SEC',
     'NET_BW_IGR_KILOBIT_PER_SEC', 'NET_PACKET_RATE_KILOPACKET_PER_SEC',
     'NET_PACKET_RATE_EGR_KILOPACKET_PER_SEC',
     'NET_PACKET_RATE_IGR_KILOPACKET_PER_SEC')
)  # fmt: skip
# Properties of an image that are lists.
_LISTS: dict[str, Any] = {
    'traits_required': list[str],
    'hw_numa_cpus': list[list[int]],
    'hw_numa_mem': list[int],
}
# Parts of a device's description that placement is asked for.
_PLACED = ('resource_class', 'traits', 'rp_uuids')

# Features of flavor and image for which a host needs traits or resources, by
# the names that compute services report. An extra spec of the flavor goes
# before the property of the image.
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


class ComputeRequest(NamedTuple):
    """A request, with further parts of its RequestSpec.

    :ivar fallback: the same with dedicated CPUs as VCPU, for hosts that do not
        offer the class PCPU; None: there is no difference
    :ivar group: the server group; None: absent
    :ivar networks: how its networks reach a host; None: absent
    """

    request: Request
    fallback: Request | None
    group: ServerGroup | None
    networks: wire.NetworkMetadata | None


class _Checked(wire.Part):
    """Parts of the request that are checked by their types."""

    instance_uuids: Annotated[
        list[Uuid], msgspec.Meta(min_length=1, max_length=MAX_INSTANCES)
    ] = []
    amounts: dict[ResourceClass, Count] = {}
    resource_groups: Annotated[
        list[ResourceGroup], msgspec.Meta(max_length=MAX_GROUPS)
    ] = []


class _Group(wire.Part):
    """RequestGroup."""

    requester_id: str | None = None
    resources: dict[str, int] | None = None
    required_traits: list[str] | None = None
    forbidden_traits: list[str] | None = None
    aggregates: list[list[str]] | None = None
    forbidden_aggregates: list[str] | None = None
    in_tree: str | None = None


def translate(
    spec_obj: Any,
    instance_uuids: Sequence[Any],
    context: Mapping[str, Any],
    offered: Collection[str] = (),
    with_groups: bool = False,
) -> ComputeRequest:
    """Return a RequestSpec as a request of ours.

    :param spec_obj: the serialized object
    :param instance_uuids: of the instances to place
    :param context: of the caller
    :param offered: resource classes that some host offers
    :param with_groups: whether groups of resources can be claimed
    :raises InvalidRequest: it is invalid, or needs something that is not
        supported
    """
    plain = wire.named(spec_obj, 'RequestSpec', 'spec_obj')
    documents.check_text(plain, fault=errors.InvalidRequest)
    spec = documents.arguments(plain, wire.RequestSpec)
    uuids = documents.arguments(
        {'instance_uuids': instance_uuids}, _Checked
    ).instance_uuids
    fallback = None
    try:
        request = _request(spec, uuids, context, offered, with_groups)
        if 'PCPU' in offered and _is_dedicated(spec):
            fallback = _request(spec, uuids, context, (), with_groups)
    except ValueError as fault:
        raise errors.InvalidRequest(str(fault)) from None
    return ComputeRequest(
        request,
        fallback,
        _server_group(spec.instance_group),
        spec.network_metadata,
    )


def _is_dedicated(spec: wire.RequestSpec) -> bool:
    """Whether all CPUs are dedicated; mixed ones have no other form."""
    cells = spec.numa_topology.cells if spec.numa_topology else []
    return {cell.cpu_policy for cell in cells} == {'dedicated'}


def _request(
    spec: wire.RequestSpec,
    uuids: list[str],
    context: Mapping[str, Any],
    offered: Collection[str],
    with_groups: bool,
) -> Request:
    """Return the request."""
    specs = {
        name: value
        for name, value in (spec.flavor.extra_specs or {}).items()
        if value is not None
    }
    params = spec.request_level_params
    resource_groups: list[ResourceGroup] = []
    policy: Any = None
    if with_groups:
        resource_groups = _resource_groups(spec, specs)
        policy = specs.get('group_policy')
    else:
        _refuse_groups(spec, specs)
    numa = _numa_topology(spec.numa_topology, spec.network_metadata)
    devices = _pci_requests(spec.pci_requests, _placed_devices(spec))
    group = spec.instance_group
    attempts = _attempts(spec.retry)
    properties = (spec.image.properties if spec.image else None) or {}
    amounts = {
        **_amounts(spec, specs, offered, resource_groups),
        **_feature_resources(specs, properties),
    }
    flavor = spec.flavor
    return Request(
        request_id=text(context, 'request_id'),
        project_id=spec.project_id or text(context, 'project_id'),
        user_id=spec.user_id or text(context, 'user_id'),
        num_instances=len(uuids),
        instance_uuids=uuids,
        flavor=Flavor(
            flavorid=flavor.flavorid,
            name=flavor.name,
            vcpus=flavor.vcpus,
            memory_mb=flavor.memory_mb,
            root_gb=flavor.root_gb,
            ephemeral_gb=flavor.ephemeral_gb,
            swap=flavor.swap,
            extra_specs=specs,
        ),
        image=_image(spec.image),
        availability_zone=spec.availability_zone,
        scheduler_hints={
            name: value if isinstance(value, list) else [value]
            for name, value in (spec.scheduler_hints or {}).items()
            if value is not None
        },
        instance_group=group.uuid if group else None,
        group_hosts=(group.hosts or []) if group else [],
        ignore_hosts=spec.ignore_hosts or [],
        ignore_nodes=attempts,
        force_hosts=spec.force_hosts or [],
        force_nodes=spec.force_nodes or [],
        retry=Retry(num_attempts=spec.retry.num_attempts, hosts=attempts)
        if spec.retry
        else None,
        requested_destination=_destination(spec.requested_destination),
        amounts=documents.arguments({'amounts': amounts}, _Checked).amounts,
        traits={
            **dict.fromkeys(_feature_traits(specs, properties), 'required'),
            **_cpu_traits(spec, offered),
        },
        root_traits={
            **dict.fromkeys(_feature_root_traits(specs), 'required'),
            **_root_traits(params),
        },
        numa_topology=numa,
        pci_requests=devices,
        resource_groups=resource_groups,
        group_policy=policy if policy in ('none', 'isolate') else None,
        same_subtree=(params.same_subtree or [])
        if with_groups and params
        else [],
    )


def _refuse_groups(spec: wire.RequestSpec, specs: Mapping[str, str]) -> None:
    """Refuse groups of resources, which only placement can claim."""
    groups = 'groups of resources are'
    found = {}
    if spec.requested_resources:
        what = 'resources of ports and device profiles are'
        found['requested_resources'] = what
    params = spec.request_level_params
    if params is not None and params.same_subtree:
        found['request_level_params.same_subtree'] = groups
    for name in sorted(filter(_GROUPED.fullmatch, specs)):
        found[f'flavor.extra_specs.{name}'] = groups
    for name, what in found.items():
        raise errors.InvalidRequest(
            f'{name}: {what} not supported by this scheduler',
            at=name,
            unsupported=name,
        )


def _image(sent: wire.Image | None) -> Image | None:
    """Return an image; traits and NUMA cells as properties of an image."""
    if sent is None:
        return None
    properties = {
        name: value
        for name, value in (sent.properties or {}).items()
        if value is not None
    }
    for name, kind in _LISTS.items():
        try:
            listed = msgspec.convert(properties.pop(name, []), kind)
        except msgspec.ValidationError as fault:
            place = f'image.properties.{name}'
            raise errors.InvalidRequest(
                f'{place}: {fault}', at=place
            ) from None
        for index, value in enumerate(listed):
            if name == 'traits_required':
                properties[f'trait:{value}'] = 'required'
            elif name == 'hw_numa_cpus':
                properties[f'{name}.{index}'] = ','.join(map(str, value))
            else:
                properties[f'{name}.{index}'] = value
    return Image(
        id=sent.id, disk_format=sent.disk_format, properties=properties
    )


def _destination(sent: wire.Destination | None) -> Destination | None:
    if sent is None:
        return None
    return Destination(
        host=sent.host,
        node=sent.node,
        cell=sent.cell.uuid if sent.cell else None,
        allow_cross_cell_move=bool(sent.allow_cross_cell_move),
        aggregates=sent.aggregates or [],
        forbidden_aggregates=sent.forbidden_aggregates or [],
    )


def _attempts(sent: wire.Retries | None) -> list[tuple[str, str]]:
    """Return the (host, node) pairs that were tried before."""
    if sent is None or sent.hosts is None:
        return []
    return [
        (node.host, node.hypervisor_hostname or node.host)
        for node in sent.hosts.objects
        if node.host
    ]


def _numa_topology(
    sent: wire.NumaTopology | None, networks: wire.NetworkMetadata | None
) -> GuestNuma | None:
    """Return a NUMA topology; None: the request has none."""
    if sent is None or not sent.cells:
        return None
    return GuestNuma(
        cells=[
            GuestNumaCell(
                cpus=len({*(cell.cpuset or ()), *(cell.pcpuset or ())}),
                memory_mb=cell.memory,
                dedicated=_dedicated_cpus(cell),
                thread_policy=cell.cpu_thread_policy,
                page_size=None
                if cell.pagesize is None
                else _PAGE_SIZES.get(cell.pagesize, str(cell.pagesize)),
            )
            for cell in sent.cells
        ],
        pinned=any(_dedicated_cpus(cell) for cell in sent.cells),
        isolated_emulator=sent.emulator_threads_policy == 'isolate',
        physnets=sorted(networks.physnets or ()) if networks else [],
        tunneled=networks.tunneled if networks else False,
    )


def _dedicated_cpus(cell: wire.NumaCell) -> int:
    """Return how many CPUs of a guest's cell are dedicated to it."""
    if cell.pcpuset or cell.cpu_policy != 'dedicated':
        return len(cell.pcpuset or ())
    # Older callers have all CPUs in one set.
    return len(cell.cpuset or ())


def _pci_requests(
    sent: wire.PciRequests | None, placed: Collection[str]
) -> list[PciRequest]:
    """Return requests for PCI devices.

    :param placed: ids of device requests that groups of resources cover
    """
    return [
        PciRequest(
            name=device.alias_name or device.requester_id,
            count=device.count,
            alternatives=[_device(spec) for spec in device.spec or [{}]],
            numa_policy=device.numa_policy or 'legacy',
            groups=device.request_id if device.request_id in placed else None,
        )
        for device in (sent.requests if sent else ())
    ]


def _device(spec: dict[str, Any]) -> dict[str, str | None]:
    return {
        name: None if value is None else str(value)
        for name, value in spec.items()
        if name not in _PLACED
    }


def _server_group(sent: wire.Group | None) -> ServerGroup | None:
    """Return a server group as our document; None where it has no policy."""
    if sent is None:
        return None
    policy = sent.policy or next(iter(sent.policies or ()), None)
    if policy is None:
        return None
    rules = {}
    most = (sent.rules or {}).get('max_server_per_host')
    if most is not None:
        if not _is_amount(most):
            place = 'instance_group.rules.max_server_per_host'
            raise errors.InvalidRequest(
                f'{place}: expected a number', at=place
            )
        rules['max_server_per_host'] = int(most)
    return documents.parse(
        {
            'uuid': sent.uuid,
            'name': sent.name or sent.uuid,
            'project_id': sent.project_id,
            'policy': policy,
            'rules': rules,
            'members': sent.members or [],
        },
        ServerGroup,
    )


def _resource_groups(
    spec: wire.RequestSpec, specs: Mapping[str, str]
) -> list[ResourceGroup]:
    """Return the groups of ports, devices and extra specs."""
    groups = _numbered_groups(specs)
    for sent in spec.requested_resources or ():
        group = documents.arguments(sent, _Group)
        suffix = group.requester_id or _next_number(groups)
        groups[suffix] = {
            'resources': group.resources or {},
            'required': sorted(group.required_traits or ()),
            'forbidden': sorted(group.forbidden_traits or ()),
            'aggregates': [
                ','.join(uuids) for uuids in group.aggregates or ()
            ],
            'forbidden_aggregates': sorted(group.forbidden_aggregates or ()),
            'in_tree': group.in_tree,
        }
    suffixed = [{'suffix': name, **groups[name]} for name in sorted(groups)]
    return documents.arguments(
        {'resource_groups': suffixed}, _Checked
    ).resource_groups


def _numbered_groups(specs: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the numbered groups of extra specs, by suffix.

    Values that mean nothing are left out, as the compute service does.
    """
    groups: dict[str, dict[str, Any]] = {}
    for key, value in specs.items():
        match = _GROUPED.fullmatch(key)
        if match is None:
            continue
        kind, suffix, name = match.groups()
        group = groups.setdefault(
            suffix, {'resources': {}, 'required': [], 'forbidden': []}
        )
        if kind == 'trait' and value in ('required', 'forbidden'):
            group[value].append(name)
        elif kind == 'resources' and _is_class(name) and _is_amount(value):
            group['resources'][name] = int(value)
    return {
        suffix: group
        for suffix, group in groups.items()
        if any(group.values())
    }


def _next_number(names: Collection[str]) -> str:
    numbers = [
        int(name) for name in names if name.isascii() and name.isdigit()
    ]
    return str(max(numbers, default=0) + 1)


def _placed_devices(spec: wire.RequestSpec) -> frozenset[str]:
    """Return the ids of device requests that groups of resources cover."""
    return frozenset(
        str(group.get('requester_id')).rpartition('-')[0]
        for group in spec.requested_resources or ()
        if group.get('requester_id')
    )


def _amounts(
    spec: wire.RequestSpec,
    specs: Mapping[str, str],
    offered: Collection[str],
    groups: Sequence[ResourceGroup],
) -> dict[str, int]:
    """Return resource class -> amount, as compute services count.

    :param offered: resource classes that some host offers
    :param groups: a class of any of them is not taken of the flavor as well
    """
    flavor = spec.flavor
    amounts = {}
    for key, value in specs.items():
        scope, _, name = key.partition(':')
        if scope == 'resources' and _is_class(name) and _is_amount(value):
            amounts[name] = int(value)
    grouped = {name for group in groups for name in group.resources}
    if not {'VCPU', 'PCPU'} & (amounts.keys() | grouped):
        amounts.update(_cpus(spec, offered))
    disk = flavor.ephemeral_gb + -(-flavor.swap // 1024)
    if not spec.is_bfv:
        disk += flavor.root_gb
    for name, amount in (('MEMORY_MB', flavor.memory_mb), ('DISK_GB', disk)):
        if name not in grouped:
            amounts.setdefault(name, amount)
    return {name: amount for name, amount in amounts.items() if amount}


def _cpus(spec: wire.RequestSpec, offered: Collection[str]) -> dict[str, int]:
    """Return shared and dedicated CPUs.

    Where no host offers the class PCPU, all count as VCPU.
    """
    topology, total = spec.numa_topology, spec.flavor.vcpus
    if topology is None or 'PCPU' not in offered:
        return {'VCPU': total}
    dedicated = sum(_dedicated_cpus(cell) for cell in topology.cells)
    if not dedicated:
        return {'VCPU': total}
    extra = topology.emulator_threads_policy == 'isolate'
    return {'VCPU': max(0, total - dedicated), 'PCPU': dedicated + extra}


def _cpu_traits(
    spec: wire.RequestSpec, offered: Collection[str]
) -> dict[str, Any]:
    """Return the trait for hyperthreads, where dedicated CPUs need one."""
    topology = spec.numa_topology
    if topology is None or 'PCPU' not in offered:
        return {}
    policies = {
        cell.cpu_thread_policy
        for cell in topology.cells
        if _dedicated_cpus(cell)
    }
    for policy, verdict in _THREADS.items():
        if policy in policies:
            return {_HYPERTHREADS: verdict}
    return {}


def _root_traits(params: wire.LevelParams | None) -> dict[str, Any]:
    """Return the traits that the host itself must or must not have."""
    if params is None:
        return {}
    required = params.root_required or []
    forbidden = params.root_forbidden or []
    both = sorted({*required} & {*forbidden})
    if both:
        raise errors.InvalidRequest(
            f'request_level_params: {both[0]} is required and forbidden',
            at='request_level_params',
        )
    return {
        **dict.fromkeys(required, 'required'),
        **dict.fromkeys(forbidden, 'forbidden'),
    }


def _feature_resources(
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


def _feature_root_traits(specs: Mapping[str, str]) -> list[str]:
    """Return the traits that the host's own provider needs."""
    secrets = _TPM_SECRETS.get(specs.get('hw:tpm_secret_security', ''))
    return [secrets] if secrets else []


def _feature_traits(
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


def _is_class(name: str) -> bool:
    """Whether the compute service takes this for a resource class."""
    return name in _CLASSES or name.startswith('CUSTOM_')


def _is_amount(value: str) -> bool:
    value = value.strip()
    return value.isascii() and value.isdigit() and len(value) <= 15


def text(context: Mapping[str, Any], name: str) -> str | None:
    """Return a text of a context; None: absent, or too long to keep."""
    value = context.get(name)
    if not isinstance(value, str) or len(value) > NAME_LENGTH:
        return None
    return value
