"""Calls a scheduler with nova's own client; runs where nova is installed.

Arguments: the configuration file, then the files of the cases to send. The
last line of the output is JSON: what came
back for each, as nova's own objects say it.
"""

import json
import sys
import uuid

from nova import config, context, exception, objects
from nova.objects import base
from nova.scheduler import rpcapi

SERIALIZER = base.NovaObjectSerializer()


def main(conf, *paths):
    """Send the cases; print what they came to."""
    config.parse_args(
        ['caller'], default_config_files=[conf], configure_db=False
    )
    objects.register_all()
    client = rpcapi.SchedulerAPI()
    found = [send(client, path) for path in paths]
    print(json.dumps(found))


def send(client, path):
    """Send the first message of a case; return what it came to."""
    with open(path) as file:
        message = json.load(file)['messages'][0]['body']['oslo.message']
    ctxt = context.RequestContext.from_dict(
        {
            key.removeprefix('_context_'): value
            for key, value in message.items()
            if key.startswith('_context_')
        }
    )
    args = SERIALIZER.deserialize_entity(ctxt, message['args'])
    method = message['method']
    if method == 'select_destinations':
        args['instance_uuids'] = [
            str(uuid.uuid4()) for _ in args['instance_uuids']
        ]
    try:
        reply = getattr(client, method)(ctxt, **args)
    except exception.NoValidHost as error:
        return {
            'error': 'NoValidHost',
            'message': error.format_message(),
            'kwargs': error.kwargs,
        }
    except Exception as error:
        return {'error': type(error).__name__, 'message': str(error)}
    return {'reply': as_plain(reply)}


def as_plain(reply):
    """Return a reply with each Selection as nova hands it to a compute."""
    if isinstance(reply, list):
        return [as_plain(one) for one in reply]
    if isinstance(reply, objects.Selection):
        return {
            'dict': reply.to_dict(),
            'host': reply.service_host,
            'node': reply.nodename,
            'cell': reply.cell_uuid,
            'limits': isinstance(reply.limits, objects.SchedulerLimits),
            'numa': as_limits(reply.limits.numa_topology),
            'zone': reply.availability_zone,
            'allocation': json.loads(reply.allocation_request),
            'version': reply.allocation_request_version,
        }
    return reply


def as_limits(numa):
    """Return the limits of NUMA cells as a compute service reads them."""
    if numa is None:
        return None
    return {
        'cpu': numa.cpu_allocation_ratio,
        'ram': numa.ram_allocation_ratio,
        'physnets': sorted(numa.network_metadata.physnets),
        'tunneled': numa.network_metadata.tunneled,
    }


if __name__ == '__main__':
    main(*sys.argv[1:])
