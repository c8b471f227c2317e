"""Calls a scheduler with nova's own client; runs where nova is installed.

Arguments: the configuration file, how many callers, for how many seconds they
call, and how many calls of theirs there are for each call of a further caller,
whose servers have a virtual GPU; 0: there is none, 1: all calls are such. The
last line of the output is JSON: how long the calls of both kinds took in
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
_GPU = {'resources:VGPU': '1'}


class WrittenRequest(oslo_messaging.NoOpSerializer):
    """Puts the uuid of a server into a request that was written before."""

    def __init__(self):
        super().__init__()
        self._placeholder = str(uuid.uuid4())
        ctxt = context.RequestContext(*_ADMIN, is_admin=True)
        self._text, self._gpu_text = (
            json.dumps(
                base.NovaObjectSerializer().serialize_entity(
                    ctxt, specification(ctxt, self._placeholder, specs)
                )
            )
            for specs in ({}, _GPU)
        )

    def serialize_entity(self, ctxt, entity):
        """Return the request of a server in place of its uuid."""
        if not isinstance(entity, str):
            return entity
        gpu, _, instance = entity.rpartition(' ')
        text = self._gpu_text if gpu else self._text
        return json.loads(text.replace(self._placeholder, instance))


def main(conf, callers, seconds, share, *hosts):
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
    call = timed
    if int(callers) > 1 or int(share):
        call = timed_as_written
        client.client.serializer = rpc.RequestContextSerializer(
            WrittenRequest()
        )
    calls = Calls(client, call, int(share), float(seconds))
    threads = [
        threading.Thread(target=calls.make, args=[share == '1'])
        for _ in range(int(callers))
    ]
    if int(share) > 1:
        threads += [
            threading.Thread(target=calls.make_for_others) for _ in range(2)
        ]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(
        json.dumps(
            {
                'first_s': first,
                'seconds': time.monotonic() - start,
                'times_s': calls.times[False],
                'gpu_times_s': calls.times[True],
                'refused': calls.refused,
            }
        )
    )


class Calls:
    """Calls of several threads, until their time is over.

    :ivar times: by whether the servers have a virtual GPU: how long calls took
    :ivar refused: why others were refused
    """

    def __init__(self, client, call, share, seconds):
        self.times, self.refused = {False: [], True: []}, []
        self._client, self._share = client, share
        self._until = time.monotonic() + seconds
        self._turns = threading.Semaphore(0)
        self._call = call

    def make(self, gpu):
        """Call over and over."""
        while time.monotonic() < self._until:
            self._make_one(gpu)
            if self._share > 1 and len(self.times[gpu]) % self._share == 0:
                self._turns.release()

    def make_for_others(self):
        """Call for a virtual GPU, as often as the others have called."""
        while time.monotonic() < self._until:
            if self._turns.acquire(timeout=1):
                self._make_one(True)

    def _make_one(self, gpu):
        try:
            self.times[gpu].append(
                self._call(self._client, 'gpu' if gpu else '')
            )
        except exception.NoValidHost as error:
            self.refused.append(error.format_message())


def timed(client, gpu=''):
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


def timed_as_written(client, gpu=''):
    """Do the same with a request that was written before."""
    instance = str(uuid.uuid4())
    ctxt = context.RequestContext(*_ADMIN, is_admin=True)
    start = time.monotonic()
    hosts = client.select_destinations(
        ctxt, f'{gpu} {instance}', [instance], return_objects=True,
        return_alternates=True,
    )  # fmt: skip
    taken = time.monotonic() - start
    if not hosts[0][0]['nova_object.data']['service_host']:
        raise ValueError(hosts)
    return taken


def specification(ctxt, instance, specs=None):
    """Return what nova-api writes for a small server with extra specs."""
    flavor = objects.Flavor(
        ctxt, id=1, flavorid='1', name='small', vcpus=1, memory_mb=512,
        root_gb=1, ephemeral_gb=0, swap=0, rxtx_factor=1.0, vcpu_weight=0,
        disabled=False, is_public=True, extra_specs=specs or {},
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
