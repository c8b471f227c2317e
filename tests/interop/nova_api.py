"""Does what nova-api does for its callers; runs where nova is installed.

The argument is a configuration file. Reads a call a line, ``{verb, ...}`` as
JSON, and writes what came of it: ``ANSWER {result: ...}`` or ``{error: ...}``.
There is no image service: every image is the same one.
"""

import contextlib
import json
import sys
import traceback

from nova import config, context, exception, objects
from nova.compute import api
from nova.objects import host_mapping
from nova.scheduler import rpcapi

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

    def create(self, flavor, count=1, metadata=None, port=None):
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
            'fault': fault and fault.message,
        }

    def delete(self, server):
        """Have a server deleted, unless it is gone already."""
        ctxt = tenant()
        with contextlib.suppress(
            exception.InstanceMappingNotFound, exception.InstanceNotFound
        ):
            self._api.delete(ctxt, self._instance(ctxt, server))

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
        spec = objects.RequestSpec(
            instance_uuid=server,
            num_instances=1,
            project_id='p',
            user_id='u',
            flavor=self._flavor(*flavor),
            image=objects.ImageMeta(properties=objects.ImageMetaProps()),
            numa_topology=None,
            pci_requests=objects.InstancePCIRequests(requests=[]),
            availability_zone=None,
            ignore_hosts=None,
            force_hosts=None,
            force_nodes=None,
            requested_destination=None,
            retry=None,
            limits=objects.SchedulerLimits(),
            instance_group=None,
            scheduler_hints={},
            security_groups=objects.SecurityGroupList(),
            requested_resources=[],
        )
        found = self._scheduler.select_destinations(
            tenant(), spec, [server], return_objects=True,
            return_alternates=True,
        )  # fmt: skip
        return [one.service_host for one in found[0]]

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
