"""Does what nova-api does for its callers; runs where nova is installed.

The argument is a configuration file. Reads a call a line, ``{verb, ...}`` as
JSON, and writes what came of it: ``ANSWER {result: ...}`` or ``{error: ...}``.
There is no image service: every image is the same one.
"""

import contextlib
import json
import sys
import traceback

import nova_verdicts
from nova import config, context, exception, objects
from nova.compute import api
from nova.objects import host_mapping
from nova.scheduler import rpcapi
from nova.virt import hardware

IMAGE = {
    'id': '155d900f-4e14-4e4c-a73d-069cbf4541e6',
    'name': 'image',
    'status': 'active',
    'size': 1,
    'min_ram': 0,
    'min_disk': 0,
    'disk_format': 'raw',
    'container_format': 'bare',
    'properties': {},
    'owner': 'p',
}


class Images:
    """An image service with one image."""

    def get(self, ctxt, image, **how):
        """Return the image."""
        return dict(IMAGE)


class Calls:
    """The calls that a test may make, with plain values."""

    def __init__(self):
        self._api = api.API(image_api=Images())
        self._scheduler = rpcapi.SchedulerAPI()

    def hosts(self):
        """Map new hosts to their cells; return the nodes of all, by host."""
        admin = context.get_admin_context()
        host_mapping.discover_hosts(admin)
        found = {}
        for cell in self._cells(admin):
            mapped = objects.HostMappingList.get_by_cell_id(admin, cell.id)
            hosts = {one.host for one in mapped}
            with context.target_cell(admin, cell) as cctxt:
                for node in objects.ComputeNodeList.get_all(cctxt):
                    if node.host in hosts:
                        found[node.host] = node.uuid
        return found

    def make_zones(self, zones):
        """Have these zones of hosts, and no others."""
        admin = context.get_admin_context()
        aggregates = api.AggregateAPI()
        for aggregate in aggregates.get_aggregate_list(admin):
            for host in aggregate.hosts:
                aggregates.remove_host_from_aggregate(
                    admin, aggregate.id, host
                )
            aggregates.delete_aggregate(admin, aggregate.id)
        for host, zone in zones.items():
            made = aggregates.create_aggregate(admin, zone, zone)
            aggregates.add_host_to_aggregate(admin, made.id, host)

    def create(self, flavor, count=1, metadata=None, port=None, zone=None):
        """Have servers built; return their uuids.

        *flavor* is (name, vCPUs, MB, GB). *port* is {id, resources, trait},
        what a port of the network service asks for.
        """
        ctxt = tenant()
        self._api.network_api.create_resource_requests = lambda *args, **how: (
            None,
            groups(port),
            None,
        )
        servers, _ = self._api.create(
            ctxt,
            self._flavor(*flavor),
            IMAGE['id'],
            min_count=count,
            max_count=count,
            display_name='server',
            metadata=metadata,
            availability_zone=zone,
            # As the HTTP API gives them.
            scheduler_hints={},
            supports_port_resource_request=True,
            requested_networks=objects.NetworkRequestList(
                objects=[objects.NetworkRequest(network_id='none')]
            ),
        )
        return [server.uuid for server in servers]

    def _flavor(self, name, vcpus, memory_mb, root_gb):
        admin = context.get_admin_context()
        with contextlib.suppress(exception.FlavorIdExists):
            objects.Flavor(
                admin, flavorid=name, name=name, vcpus=vcpus,
                memory_mb=memory_mb, root_gb=root_gb, ephemeral_gb=0,
                swap=0, rxtx_factor=1.0, vcpu_weight=0, disabled=False,
                is_public=True,
            ).create()  # fmt: skip
        return objects.Flavor.get_by_flavor_id(admin, name)

    def show(self, server):
        """Return what is known of a server; None once it is deleted."""
        ctxt = tenant()
        try:
            mapping = objects.InstanceMapping.get_by_instance_uuid(
                ctxt, server
            )
            if mapping.cell_mapping is None:
                return {'state': 'scheduling'}
            with context.target_cell(ctxt, mapping.cell_mapping) as cctxt:
                found = objects.Instance.get_by_uuid(cctxt, server)
                fault = found.fault
        except (
            exception.InstanceMappingNotFound,
            exception.InstanceNotFound,
        ):
            return None
        return {
            'cell': mapping.cell_mapping.name,
            'host': found.host,
            'state': found.vm_state,
            'task': found.task_state,
            'flavor': found.flavor.name,
            'fault': fault and fault.message,
        }

    def delete(self, server):
        """Have a server deleted, unless it is gone already."""
        ctxt = tenant()
        with contextlib.suppress(
            exception.InstanceMappingNotFound, exception.InstanceNotFound
        ):
            self._api.delete(ctxt, self._instance(ctxt, server))

    def resize(self, server, flavor):
        """Have a server resized, on its own host if that is allowed."""
        ctxt, name = tenant(), self._flavor(*flavor).flavorid
        self._api.resize(ctxt, self._instance(ctxt, server), name)

    def confirm(self, server):
        """Have a server keep the flavor that it was resized to."""
        ctxt = tenant()
        self._api.confirm_resize(ctxt, self._instance(ctxt, server))

    def revert(self, server):
        """Have a server get back the flavor that it was resized from."""
        ctxt = tenant()
        self._api.revert_resize(ctxt, self._instance(ctxt, server))

    def _instance(self, ctxt, server):
        """Return a server as nova-api finds it, also before it has a cell."""
        try:
            request = objects.BuildRequest.get_by_instance_uuid(ctxt, server)
        except exception.BuildRequestNotFound:
            mapping = objects.InstanceMapping.get_by_instance_uuid(
                ctxt, server
            )
            context.set_target_cell(ctxt, mapping.cell_mapping)
            return objects.Instance.get_by_uuid(ctxt, server)
        return request.get_new_instance(ctxt)

    def servers(self):
        """Return the host of each server that is not deleted, by uuid."""
        admin = context.get_admin_context()
        found = {}
        for cell in self._cells(admin):
            with context.target_cell(admin, cell) as cctxt:
                every = objects.InstanceList.get_by_filters(
                    cctxt, {'deleted': False}
                )
                found.update({one.uuid: one.host for one in every})
        return found

    def _cells(self, ctxt):
        return objects.CellMappingList.get_all(ctxt)

    def select(self, server, flavor):
        """Ask a scheduler for the host of a server; return host names."""
        spec = request_spec(
            server,
            flavor=self._flavor(*flavor),
            image=objects.ImageMeta(properties=objects.ImageMetaProps()),
        )
        found = self._scheduler.select_destinations(
            tenant(), spec, [server], return_objects=True,
            return_alternates=True,
        )  # fmt: skip
        return [one.service_host for one in found[0]]

    def place(
        self,
        servers,
        flavor,
        image=None,
        cells=(),
        pages=(),
        devices=(),
        groups=(),
        levels=None,
        physnets=(),
        ignored=(),
        zone=None,
    ):
        """Ask a scheduler for the hosts of servers, as a conductor does.

        *flavor* has the fields of one, *image* properties. *cells* are the
        NUMA cells of a server, where the flavor does not say them. *devices*
        are requests for PCI devices, those that are ``placed`` as groups too.
        *groups* are those of ports, *levels* what concerns them all.

        Returns for each server its host, what was claimed, and the mappings.
        """
        made = objects.Flavor(
            flavorid='f', name='f', ephemeral_gb=0, swap=0,
            **{
                'vcpus': 2,
                'memory_mb': 1024,
                'root_gb': 1,
                'extra_specs': {},
                **flavor,
            },
        )  # fmt: skip
        meta = objects.ImageMeta(
            properties=objects.ImageMetaProps.from_dict(image or {})
        )
        spec = request_spec(
            servers[0],
            flavor=made,
            image=meta,
            num_instances=len(servers),
            ignore_hosts=list(ignored) or None,
            availability_zone=zone,
            numa_topology=objects.InstanceNUMATopology(
                cells=[
                    objects.InstanceNUMACell(
                        id=number,
                        **{
                            **cell,
                            'cpuset': set(cell['cpuset']),
                            'pcpuset': set(cell['pcpuset']),
                        },
                    )
                    for number, cell in enumerate(cells)
                ]
            )
            if cells
            else hardware.numa_get_constraints(made, meta),
            requested_resources=[
                objects.RequestGroup(
                    **{
                        **group,
                        'required_traits': set(
                            group.get('required_traits', ())
                        ),
                    }
                )
                for group in groups
            ],
        )
        if levels:
            spec.request_level_params = objects.RequestLevelParams(
                root_required=set(levels.get('root_required', ())),
                same_subtree=[set(names) for names in levels['same_subtree']],
            )
        if physnets:
            spec.network_metadata = objects.NetworkMetadata(
                physnets=set(physnets), tunneled=False
            )
        every = []
        for device in devices:
            placed = device.pop('placed', False)
            spec.pci_requests = objects.InstancePCIRequests(
                requests=[objects.InstancePCIRequest(**device)]
            )
            if placed:
                spec.generate_request_groups_from_pci_requests()
            every.extend(spec.pci_requests.requests)
        spec.pci_requests = objects.InstancePCIRequests(requests=every)
        found = self._scheduler.select_destinations(
            tenant(), spec, servers, return_objects=True,
            return_alternates=True,
        )  # fmt: skip
        return [chosen(one[0]) for one in found]

    def spec(self, servers, flavor, group=None, ignored=(), cell=None):
        """Return the request of servers, as a conductor sends it.

        *flavor* and *group* have the fields of one. *cell* is the uuid of the
        only one that is allowed, as in a move.
        """
        made = request_spec(
            servers[0],
            flavor=objects.Flavor(
                flavorid='f', name='f', ephemeral_gb=0, swap=0, **flavor
            ),
            image=objects.ImageMeta(properties=objects.ImageMetaProps()),
            num_instances=len(servers),
            ignore_hosts=list(ignored) or None,
            instance_group=objects.InstanceGroup(**group) if group else None,
            requested_destination=objects.Destination(
                cell=objects.CellMapping(uuid=cell),
                allow_cross_cell_move=False,
            )
            if cell
            else None,
        )
        return made.obj_to_primitive()

    def rows(self, cells, pools):
        """Return the columns of a node with NUMA cells and device pools."""
        topology = nova_verdicts.topology(cells)
        listed = objects.PciDevicePoolList(
            objects=[objects.PciDevicePool(**pool) for pool in pools]
        )
        return {
            'numa_topology': topology._to_json() if cells else None,
            'pci_stats': json.dumps(listed.obj_to_primitive()),
        }

    def sync(self, host):
        """Tell all schedulers that a host has no servers."""
        self._scheduler.sync_instance_info(tenant(), host, [])


def groups(port):
    """Return the groups of resources that a port asks for."""
    if port is None:
        return []
    return [
        objects.RequestGroup(
            requester_id=port['id'],
            resources=port['resources'],
            required_traits={port['trait']},
        )
    ]


def request_spec(server, **fields):
    """Return the request of a server, empty but for some fields."""
    return objects.RequestSpec(
        instance_uuid=server,
        **{
            'num_instances': 1,
            'project_id': 'p',
            'user_id': 'u',
            'numa_topology': None,
            'pci_requests': objects.InstancePCIRequests(requests=[]),
            'availability_zone': None,
            'ignore_hosts': None,
            'force_hosts': None,
            'force_nodes': None,
            'requested_destination': None,
            'retry': None,
            'limits': objects.SchedulerLimits(),
            'instance_group': None,
            'scheduler_hints': {},
            'security_groups': objects.SecurityGroupList(),
            'requested_resources': [],
            'request_level_params': objects.RequestLevelParams(),
            **fields,
        },
    )


def chosen(selection):
    """Return host, allocations and mappings of a Selection, and limits."""
    request = json.loads(selection.allocation_request)
    numa = selection.limits.numa_topology
    return {
        'host': selection.service_host,
        'allocations': {
            provider: given['resources']
            for provider, given in request['allocations'].items()
        },
        'mappings': request['mappings'],
        'physnets': sorted(numa.network_metadata.physnets)
        if numa and 'network_metadata' in numa
        else [],
        'has_numa_limits': numa is not None,
    }


def tenant():
    """Return the context of a tenant's request."""
    return context.RequestContext(
        'u', 'p', roles=['member', 'reader'], auth_token='t', is_admin=False
    )


def main(conf):
    """Answer calls until the input ends."""
    config.parse_args(['nova-api'], default_config_files=[conf])
    objects.register_all()
    calls = Calls()
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = {'result': getattr(calls, asked.pop('verb'))(**asked)}
        except Exception as error:
            traceback.print_exc()
            answer = {'error': f'{type(error).__name__}: {error}'}
        print(f'ANSWER {json.dumps(answer)}', flush=True)


if __name__ == '__main__':
    main(*sys.argv[1:])
