"""Judges cases with nova's own functions; runs where nova is installed.

Reads JSON from the standard input, and writes JSON as the last line:

* ``requests``: fields of flavors and images, which nova makes a RequestSpec
  and its query of placement of
* ``images``: images, of which it says which traits of hosts they require, or
  that it refuses them
* ``versions``: one case, without content, for which it gives a RequestSpec in
  each version of each object: (name, minor version, RequestSpec)
* ``topologies``: extra specs and image properties, of which it says which NUMA
  cells they describe, or that it refuses them
* ``aliases``: ``[pci] alias`` with extra specs and image properties, of which
  it says which devices they ask for, or that it refuses them
* ``asked``: the same with hosts, of which it says whether the instance fits
* ``numa``: hosts with a guest, of which nova says whether it fits
* ``devices``: pools with requests for devices, of which it says the same
* ``several``: hosts with a guest and requests for devices, of which it says
  how many such instances of one request fit
"""

import json
import sys
import uuid

from nova import config, exception, objects
from nova.pci import request as pci_request
from nova.pci import stats
from nova.scheduler import host_manager, request_filter, utils
from nova.virt import hardware


def main():
    """Judge all cases."""
    config.parse_args(
        ['verdicts'], default_config_files=[], configure_db=False
    )
    objects.register_all()
    cases = json.load(sys.stdin)
    judged = {
        'requests': [request(**case) for case in cases.get('requests', ())],
        'images': [image_traits(**case) for case in cases.get('images', ())],
        'versions': [versions() for _ in cases.get('versions', ())],
        'topologies': [cells(**case) for case in cases.get('topologies', ())],
        'aliases': [alias_requests(**case) for case in cases['aliases']],
        'asked': [asked_fits(**case) for case in cases['asked']],
        'numa': [fits(**case) for case in cases.get('numa', ())],
        'devices': [devices(**case) for case in cases.get('devices', ())],
        'several': [several(**case) for case in cases.get('several', ())],
    }
    print(json.dumps(judged))


def request(flavor, image=None, groups=()):
    """Return the RequestSpec as it travels, and the query that it makes."""
    made = objects.Flavor(
        flavorid='1', name='f', vcpus=4, memory_mb=2048, root_gb=20,
        ephemeral_gb=0, swap=0, **flavor,
    )  # fmt: skip
    properties = objects.ImageMetaProps.from_dict(image or {})
    meta = objects.ImageMeta(properties=properties)
    spec = objects.RequestSpec(
        flavor=made,
        image=meta,
        project_id='p',
        num_instances=1,
        numa_topology=hardware.numa_get_constraints(made, meta),
        requested_resources=[
            objects.RequestGroup(
                requester_id=group['requester_id'],
                resources=group['resources'],
                use_same_provider=group.get('use_same_provider', True),
            )
            for group in groups
        ],
        request_level_params=objects.RequestLevelParams(),
    )
    asked = utils.ResourceRequest.from_request_spec(spec)
    return {
        'spec': spec.obj_to_primitive(),
        'query': asked.to_querystring(),
        'uuid': str(uuid.uuid4()),
    }


def image_traits(**image):
    """Return the traits that an image requires; None: it is refused."""
    for option in (
        'image_metadata_prefilter', 'query_placement_for_image_type_support',
    ):  # fmt: skip
        config.CONF.set_override(option, True, 'scheduler')
    try:
        meta = objects.ImageMeta.from_dict(image)
    except ValueError:
        return None
    spec = objects.RequestSpec(
        image=meta,
        is_bfv=False,
        request_level_params=objects.RequestLevelParams(),
    )
    request_filter.require_image_type_support(None, spec)
    request_filter.transform_image_metadata(None, spec)
    return sorted(spec.root_required)


def full_spec():
    """Return a RequestSpec in which each object has a meaning."""
    network = objects.NetworkMetadata(physnets={'p'}, tunneled=True)
    device = objects.InstancePCIRequest(
        count=1, spec=[{'vendor_id': '8086'}], alias_name='nic',
        is_new=False, request_id=str(uuid.uuid4()), requester_id=None,
        numa_policy='required',
    )  # fmt: skip
    cell = objects.InstanceNUMACell(
        id=0, cpuset=set(), pcpuset={0, 1}, memory=1024, pagesize=2048,
        cpu_policy='dedicated', cpu_thread_policy='require',
        cpu_pinning_raw=None, cpuset_reserved=None,
    )  # fmt: skip
    return objects.RequestSpec(
        flavor=objects.Flavor(
            flavorid='1', name='f', vcpus=2, memory_mb=1024, root_gb=20,
            ephemeral_gb=1, swap=0, description='d',
            extra_specs={'trait:CUSTOM_F': 'required'},
        ),
        image=objects.ImageMeta(
            disk_format='raw',
            properties=objects.ImageMetaProps.from_dict(
                {
                    'traits_required': ['CUSTOM_I'],
                    'hw_firmware_type': 'uefi',
                    'hw_firmware_stateless': 'true',
                    'hw_tpm_version': '2.0',
                    'hw_tpm_model': 'tpm-crb',
                    'hw_maxphysaddr_mode': 'emulate',
                    'os_secure_boot': 'required',
                }
            ),
        ),
        project_id='p',
        user_id='someone',
        availability_zone='west',
        num_instances=1,
        is_bfv=True,
        numa_topology=objects.InstanceNUMATopology(
            cells=[cell], emulator_threads_policy='isolate'
        ),
        pci_requests=objects.InstancePCIRequests(requests=[device]),
        network_metadata=network,
        ignore_hosts=['i'],
        force_hosts=None,
        force_nodes=None,
        requested_destination=objects.Destination(
            host='h', node=None, aggregates=[str(uuid.UUID(int=1))],
            forbidden_aggregates={str(uuid.UUID(int=2))},
        ),
        requested_resources=[
            objects.RequestGroup(
                requester_id='port',
                resources={'CUSTOM_NET': 1},
                required_traits={'CUSTOM_P'},
                forbidden_aggregates={str(uuid.UUID(int=3))},
            )
        ],
        request_level_params=objects.RequestLevelParams(
            root_required={'CUSTOM_R'}, same_subtree=[{'port'}]
        ),
        instance_group=objects.InstanceGroup(
            uuid=str(uuid.UUID(int=4)), name='g', project_id='p',
            policy='anti-affinity', _rules={'max_server_per_host': '2'},
            members=[], hosts=['g'],
        ),
        retry=None,
        limits=objects.SchedulerLimits(),
        scheduler_hints={},
        security_groups=objects.SecurityGroupList(objects=[]),
    )  # fmt: skip


VERSIONED = (
    'RequestSpec', 'Flavor', 'ImageMeta', 'ImageMetaProps',
    'InstanceNUMATopology', 'InstanceNUMACell', 'InstancePCIRequests',
    'InstancePCIRequest', 'Destination', 'RequestGroup',
    'RequestLevelParams', 'InstanceGroup', 'NetworkMetadata',
)  # fmt: skip


def versions():
    """Return the RequestSpec in all versions that it can be sent in."""
    full = full_spec()
    now = {name: getattr(objects, name).VERSION for name in VERSIONED}
    made = []
    for name, newest in now.items():
        for minor in range(int(newest.partition('.')[2]) + 1):
            manifest = {**now, name: f'1.{minor}'}
            if name == 'RequestGroup':
                # Subtrees are of later releases.
                manifest['RequestLevelParams'] = '1.0'
            try:
                sent = full.obj_to_primitive(
                    manifest['RequestSpec'], version_manifest=manifest
                )
            except Exception:
                # It has values that this version has no place for.
                continue
            made.append([name, minor, json.loads(json.dumps(sent))])
    return made


def cells(specs, image):
    """Return the cells of an instance with 4 vCPUs and 1024 MB.

    None: it has none; a text: it is refused.
    """
    made = objects.Flavor(
        flavorid='1', name='f', vcpus=4, memory_mb=1024, root_gb=1,
        ephemeral_gb=0, swap=0, extra_specs=specs,
    )  # fmt: skip
    try:
        properties = objects.ImageMetaProps.from_dict(image)
        meta = objects.ImageMeta(name='i', properties=properties)
        found = hardware.numa_get_constraints(made, meta)
    except Exception as fault:
        return type(fault).__name__
    if found is None:
        return None
    return [
        [len(one.cpuset), len(one.pcpuset), one.memory,
         one.cpu_thread_policy or '', one.pagesize]
        for one in found.cells
    ]  # fmt: skip


def alias_requests(aliases, specs, image):
    """Return the devices of a flavor and an image, and the valid settings.

    Devices are None where nova refuses them. Settings are those of
    pci_in_placement with which nova takes the aliases.
    """
    config.CONF.set_override('alias', aliases, 'pci')
    valid = []
    for setting in (False, True):
        config.CONF.set_override(
            'pci_in_placement', setting, 'filter_scheduler'
        )
        pci_request.get_alias_from_config.cache_clear()
        try:
            pci_request.get_alias_from_config()
        except exception.PciInvalidAlias:
            continue
        valid.append(setting)
    if not valid:
        return {'valid': [], 'devices': None}
    try:
        made, _ = asked_devices(aliases, specs, image, valid[0])
    except Exception:
        return {'valid': valid, 'devices': None}
    return {
        'valid': valid,
        'devices': [
            [one.alias_name, one.count, one.spec, one.numa_policy]
            for one in made
        ],
    }


def asked_devices(aliases, specs, image, in_placement=False):
    """Return requests for devices of flavor and image, and the topology."""
    config.CONF.set_override('alias', aliases, 'pci')
    config.CONF.set_override(
        'pci_in_placement', in_placement, 'filter_scheduler'
    )
    pci_request.get_alias_from_config.cache_clear()
    flavor = objects.Flavor(vcpus=4, memory_mb=1024, extra_specs=specs)
    properties = objects.ImageMetaProps.from_dict(image)
    meta = objects.ImageMeta(name='i', properties=properties)
    policy = hardware.get_pci_numa_policy_constraint(flavor, meta)
    made = pci_request.get_pci_requests_from_flavor(flavor, policy)
    return made.requests, hardware.numa_get_constraints(flavor, meta)


def asked_fits(aliases, specs, image, hosts, pools):
    """Return for each host whether it has the devices, near enough."""
    asked, guest = asked_devices(aliases, specs, image)
    verdicts = []
    for cells, given in zip(hosts, pools, strict=True):
        host = topology(cells)
        limits = objects.NUMATopologyLimits(
            cpu_allocation_ratio=4.0, ram_allocation_ratio=4.0
        )
        has = device_stats(host, given).support_requests(asked, {})
        if has and guest is not None:
            has = hardware.numa_fit_instance_to_host(
                host,
                guest,
                provider_mapping={},
                limits=limits,
                pci_requests=asked,
                pci_stats=device_stats(host, given),
            )
        verdicts.append(bool(has))
    return verdicts


def topology(cells):
    """Return a host's topology of cells as the project's documents have it."""
    return objects.NUMATopology(
        cells=[
            objects.NUMACell(
                id=number,
                cpuset=set(cell['cpuset']),
                pcpuset=set(cell['pcpuset']),
                pinned_cpus=set(cell['pinned_cpus']),
                siblings=[set(core) for core in cell['siblings']],
                cpu_usage=cell['cpu_usage'],
                memory=cell['memory'],
                memory_usage=cell['memory_usage'],
                socket=cell.get('socket'),
                mempages=[
                    objects.NUMAPagesTopology(**page)
                    for page in cell['mempages']
                ],
                **(
                    {
                        'network_metadata': objects.NetworkMetadata(
                            physnets=set(cell['network_metadata']['physnets']),
                            tunneled=cell['network_metadata']['tunneled'],
                        )
                    }
                    if cell.get('network_metadata')
                    else {}
                ),
            )
            for number, cell in enumerate(cells)
        ]
    )


def instance_topology(guest):
    """Return the topology of an instance."""
    return objects.InstanceNUMATopology(
        cells=[
            objects.InstanceNUMACell(
                id=at,
                cpuset=set(cell['cpuset']),
                pcpuset=set(cell['pcpuset']),
                memory=cell['memory'],
                pagesize=cell['pagesize'],
                cpu_policy=cell['cpu_policy'],
                cpu_thread_policy=cell['cpu_thread_policy'],
            )
            for at, cell in enumerate(guest['cells'])
        ],
        emulator_threads_policy=guest['emulator_threads_policy'],
    )


def several(cells, guest, cpu_ratio, ram_ratio, pools, requests, most):
    """Return how many instances of one request fit a host, at most *most*.

    As the scheduler counts them between instances, with its own function.
    None where it fails: an emulator thread takes a core of which a part is
    taken before, as a whole.
    """
    host = host_manager.HostState('h', 'h', str(uuid.uuid4()))
    host.numa_topology = topology(cells)
    host.pci_stats = device_stats(host.numa_topology, pools)
    host.limits['numa_topology'] = objects.NUMATopologyLimits(
        cpu_allocation_ratio=cpu_ratio, ram_allocation_ratio=ram_ratio
    )
    host.free_ram_mb = host.free_disk_mb = 0
    for count in range(most):
        asked = pci_requests(requests)
        spec = objects.RequestSpec(
            flavor=objects.Flavor(
                root_gb=0, ephemeral_gb=0, memory_mb=0, vcpus=0
            ),
            numa_topology=guest and instance_topology(guest),
            pci_requests=objects.InstancePCIRequests(requests=asked),
            requested_resources=[],
        )
        if guest:
            fitted = hardware.numa_fit_instance_to_host(
                host.numa_topology,
                instance_topology(guest),
                provider_mapping={},
                limits=host.limits['numa_topology'],
                pci_requests=asked,
                pci_stats=host.pci_stats,
            )
            if fitted is None:
                return count
        elif not host.pci_stats.support_requests(asked, {}):
            return count
        try:
            host._locked_consume_from_request(spec)
        except exception.CPUPinningInvalid:
            return None
    return most


def fits(
    hosts, guest, cpu_ratio, ram_ratio, pools=None, requests=(), networks=None
):
    """Return for each host whether the guest fits it."""
    verdicts = []
    for number, cells in enumerate(hosts):
        host = topology(cells)
        limits = objects.NUMATopologyLimits(
            cpu_allocation_ratio=cpu_ratio, ram_allocation_ratio=ram_ratio
        )
        if networks:
            limits.network_metadata = objects.NetworkMetadata(
                physnets=set(networks['physnets']),
                tunneled=networks['tunneled'],
            )
        guest_topology = instance_topology(guest)
        given = pools[number] if pools else None
        fitted = hardware.numa_fit_instance_to_host(
            host,
            guest_topology,
            provider_mapping={},
            limits=limits,
            pci_requests=pci_requests(requests),
            pci_stats=device_stats(host, given) if given is not None else None,
        )
        verdicts.append(fitted is not None)
    return verdicts


def device_stats(host, pools):
    """Return the stats of pools."""
    listed = objects.PciDevicePoolList(
        objects=[objects.PciDevicePool(**pool) for pool in pools]
    )
    return stats.PciDeviceStats(host, listed)


def pci_requests(requests):
    """Return requests for devices."""
    return [
        objects.InstancePCIRequest(
            request_id=str(uuid.uuid4()), alias_name='a', **one
        )
        for one in requests
    ]


def devices(pools, requests):
    """Return whether pools have all requested devices."""
    pools = device_stats(objects.NUMATopology(cells=[]), pools)
    return pools.support_requests(pci_requests(requests), {})


if __name__ == '__main__':
    main()
