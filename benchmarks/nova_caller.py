"""Calls a scheduler with nova's own client; runs where nova is installed.

Arguments: the configuration file, how many callers, and for how many seconds
they call. The last line of the output is JSON: how long each call took in
seconds, and what was refused. With names of hosts as further arguments, that
each has no servers is cast to all schedulers instead.

One caller builds each request of nova's objects, and makes objects of each
reply. In a cloud 16 callers are 16 processes on other machines; here they
share two cores with what is measured, where nova's objects alone would take
several milliseconds a call. Several callers therefore send, through the same
client, a request that nova's objects wrote once, with the server's uuid
replaced, and read of a reply what they check.
"""

import json
import sys
import threading
import time
import uuid

import oslo_messaging
from nova import config, context, exception, objects, rpc
from nova.objects import base
from nova.scheduler import rpcapi

_ADMIN = ('user', 'project')


class WrittenRequest(oslo_messaging.NoOpSerializer):
    """Puts the uuid of a server into a request that was written before."""

    def __init__(self):
        super().__init__()
        self._placeholder = str(uuid.uuid4())
        ctxt = context.RequestContext(*_ADMIN, is_admin=True)
        self._text = json.dumps(
            base.NovaObjectSerializer().serialize_entity(
                ctxt, specification(ctxt, self._placeholder)
            )
        )

    def serialize_entity(self, ctxt, entity):
        """Return the request of a server in place of its uuid."""
        if not isinstance(entity, str):
            return entity
        return json.loads(self._text.replace(self._placeholder, entity))


def main(conf, callers, seconds, *hosts):
    """Have callers call at the same time; print what it came to."""
    config.parse_args(
        ['caller'], default_config_files=[conf], configure_db=False
    )
    objects.register_all()
    client = rpcapi.SchedulerAPI()
    if hosts:
        ctxt = context.RequestContext(*_ADMIN, is_admin=True)
        for host in hosts:
            client.sync_instance_info(ctxt, host, [])
        return
    first = timed(client)
    times, refused = [], []
    call = timed
    if int(callers) > 1:
        client.client.serializer = rpc.RequestContextSerializer(
            WrittenRequest()
        )
        call = timed_as_written
    start = time.monotonic()
    until = start + float(seconds)

    def work():
        while time.monotonic() < until:
            try:
                times.append(call(client))
            except exception.NoValidHost as error:
                refused.append(error.format_message())

    threads = [threading.Thread(target=work) for _ in range(int(callers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(
        json.dumps(
            {
                'first_s': first,
                'seconds': time.monotonic() - start,
                'times_s': times,
                'refused': refused,
            }
        )
    )


def timed(client):
    """Ask for a host for one server; return how long it took, in seconds."""
    instance = str(uuid.uuid4())
    ctxt = context.RequestContext(*_ADMIN, is_admin=True)
    spec = specification(ctxt, instance)
    start = time.monotonic()
    hosts = client.select_destinations(
        ctxt, spec, [instance], return_objects=True, return_alternates=True
    )
    taken = time.monotonic() - start
    if not hosts[0][0].service_host:
        raise ValueError(hosts)
    return taken


def timed_as_written(client):
    """Do the same with a request that was written before."""
    instance = str(uuid.uuid4())
    ctxt = context.RequestContext(*_ADMIN, is_admin=True)
    start = time.monotonic()
    hosts = client.select_destinations(
        ctxt, instance, [instance], return_objects=True, return_alternates=True
    )
    taken = time.monotonic() - start
    if not hosts[0][0]['nova_object.data']['service_host']:
        raise ValueError(hosts)
    return taken


def specification(ctxt, instance):
    """Return what nova-api writes for a small server without anything else."""
    flavor = objects.Flavor(
        ctxt, id=1, flavorid='1', name='small', vcpus=1, memory_mb=512,
        root_gb=1, ephemeral_gb=0, swap=0, rxtx_factor=1.0, vcpu_weight=0,
        disabled=False, is_public=True, extra_specs={},
    )  # fmt: skip
    return objects.RequestSpec(
        ctxt, instance_uuid=instance, num_instances=1, flavor=flavor,
        image=objects.ImageMeta(
            id=str(uuid.uuid4()), properties=objects.ImageMetaProps()
        ),
        project_id='project', user_id='user', availability_zone=None,
        numa_topology=None, instance_group=None, retry=None,
        pci_requests=objects.InstancePCIRequests(
            instance_uuid=instance, requests=[]
        ),
        limits=objects.SchedulerLimits(), ignore_hosts=None, force_hosts=None,
        force_nodes=None, requested_destination=None, scheduler_hints={},
        security_groups=objects.SecurityGroupList(objects=[]), is_bfv=False,
        network_metadata=objects.NetworkMetadata(
            physnets=set(), tunneled=False
        ),
        requested_networks=objects.NetworkRequestList(objects=[]),
        requested_resources=[],
        request_level_params=objects.RequestLevelParams(),
    )  # fmt: skip


if __name__ == '__main__':
    main(*sys.argv[1:])
