"""What becomes of fields that a compute service alone should set.

Each is sent on each face as a member, an admin and a service; the table on the
page about security says what comes of it.
"""

import re
import uuid
from functools import partial
from typing import NamedTuple

import pytest

from scheduler_service import errors
from scheduler_service.model import ServerGroup
from scheduler_service.store.writing import server_groups
from tests.support.compute import CONTEXT, ComputeCaller, hosts_of, new_topic
from tests.support.nova_wire import flavor, spec, thing
from tests.support.paths import ROOT
from tests.support.services import hosts_of as service_hosts

import oslo_messaging  # isort: skip

PAGE = (ROOT / 'doc/source/admin/security.rst').read_text()
MINE, THEIRS = CONTEXT['project_id'], 'b' * 32
CALLERS = {
    role: {**CONTEXT, 'roles': [role]}
    for role in ('member', 'admin', 'service')
}
OWN, EXPLAIN = '``select_destinations``', '``explain``'
COMPUTE, EXTERNAL = 'compute interface', 'external call'
FACES = OWN, EXPLAIN, COMPUTE, EXTERNAL
# Hosts keep their order by memory; what is large fits none.
SMALL, LARGE = ({'vcpus': n, 'memory_mb': 0, 'root_gb': 0} for n in (1, 999))
# Placed on compute-2, each in a group that keeps its members together.
THEIR_INSTANCE, MY_INSTANCE = (str(uuid.uuid4()) for _ in range(2))
THEIR_GROUP, MY_GROUP, EMPTY_GROUP = (str(uuid.uuid4()) for _ in range(3))
NODES = [
    {'host': f'compute-{n}', 'hypervisor_hostname': f'node-{n}'}
    for n in range(1, 6)
]


@pytest.fixture
def http(serve_external):
    """A daemon with all faces, and an instance of each of two projects."""
    http = serve_external(
        compute__enabled=True,
        compute__topic=new_topic(),
        filter_scheduler__enabled_filters=[
            'ComputeFilter', 'CoreFilter', 'RetryFilter',
            'SameHostFilter',             'ServerGroupAffinityFilter',
        ],
        filter_scheduler__weight_classes=['RAMWeigher'],
    )  # fmt: skip
    for project, group in (
        (MINE, MY_GROUP), (MINE, EMPTY_GROUP), (THEIRS, THEIR_GROUP),
    ):  # fmt: skip
        made = ServerGroup(uuid=group, project_id=project, policy='affinity')
        http.service.store.write(partial(server_groups.create, group=made))
    for project, instance, group in (
        (MINE, MY_INSTANCE, MY_GROUP),
        (THEIRS, THEIR_INSTANCE, THEIR_GROUP),
    ):
        http.service.client.select_destinations(
            CALLERS['admin'],
            {'flavor': SMALL, 'project_id': project,
             'instance_uuids': [instance], 'instance_group': group,
             'force_hosts': ['compute-2']},
        )  # fmt: skip
    instances = [MY_INSTANCE, THEIR_INSTANCE]
    http.service.client.confirm(CALLERS['admin'], instances)
    return http


@pytest.fixture
def faces(http):
    """Functions that send fields as a caller, and return the best host."""
    service = http.service
    caller = ComputeCaller(service.url, service.conf.compute.topic)

    def forget(instance):
        """Undo what was claimed for an instance."""
        if instance not in (MY_INSTANCE, THEIR_INSTANCE):
            service.client.release(CALLERS['admin'], [instance])
        return service.client.drop_moves(CALLERS['admin'], [instance])

    def own(context, sent):
        answer = service.client.select_destinations(context, sent)
        (instance,) = (one['instance_uuid'] for one in answer['placements'])
        return service_hosts(answer)[0], forget(instance)

    def explain(context, sent):
        report = service.client.explain(context, sent)
        if 'error' in report:
            return report['error']['name']
        return report['finalists'][0]['host']

    def compute(context, sent):
        args = {'instance_uuids': sent.pop('instance_uuids', [new()]),
                'spec_obj': spec(**sent), 'return_objects': True,
                'return_alternates': False}  # fmt: skip
        client = caller._client.prepare(version='4.5')
        try:
            reply = client.call(context, 'select_destinations', **args)
        except oslo_messaging.RemoteError as error:
            return error.exc_type
        return hosts_of(reply)[0][0], forget(args['instance_uuids'][0])

    def external(context, sent):
        (instance,) = sent.pop('instance_uuids', [new()])
        body = {'spec': spec(instance_uuid=instance, **sent),
                'context': context, 'hosts': NODES}  # fmt: skip
        status, answer = http.send('POST', '/scheduler/nova/external', body)
        return (
            (*answer['hosts'], 'NoValidHost')[0] if status == 200 else status
        )

    yield dict(zip(FACES, (own, explain, compute, external), strict=True))
    caller.transport.cleanup()


def new():
    return str(uuid.uuid4())


class Field(NamedTuple):
    """A field in the two forms of a request, and what it is sent with."""

    own: dict
    compute: dict
    own_rest: dict = {}
    compute_rest: dict = {}


def rebuild(instance=None, own=None, compute=None):
    """Return the hint of a rebuild, of an instance that does not fit."""
    hint = {'scheduler_hints': {'_nova_check_type': ['rebuild']}}
    named = {'instance_uuids': [instance]} if instance else {}
    return Field(
        hint,
        hint,
        {'flavor': LARGE, **named, **(own or {})},
        {'flavor': flavor(**LARGE), **named, **(compute or own or {})},
    )


def destination(host):
    """Return a host that is asked for, in both forms."""
    sent = thing('Destination', '1.4', host=host)
    return [{'requested_destination': each} for each in ({'host': host}, sent)]


def same(**fields):
    return Field(fields, fields)


def group(**fields):
    policy = {'policy': 'affinity', 'members': []}
    return {'instance_group': thing('InstanceGroup', '1.11', **fields,
                                    **policy)}  # fmt: skip


FIELDS = {
    'the hint ``_nova_check_type``': [
        rebuild(),
        rebuild(own={'force_hosts': ['compute-2']}),
        rebuild(None, *destination('compute-2')),
        rebuild(MY_INSTANCE, *destination('compute-3')),
        rebuild(MY_INSTANCE, *destination('compute-2')),
    ],
    '``limits``': [
        Field({'limits': {'vcpu': 9999}},
              {'limits': thing('SchedulerLimits', '1.0', vcpu=9999)},
              {'flavor': LARGE}, {'flavor': flavor(**LARGE)}),
    ],
    '``retry``': [
        Field({'retry': {'num_attempts': 2,
                         'hosts': [['compute-1', 'node-1']]}},
              {'retry': thing(
                  'SchedulerRetries', '1.1', num_attempts=2,
                  hosts=thing('ComputeNodeList', '1.17', objects=[
                      thing('ComputeNode', '1.19', host='compute-1',
                            hypervisor_hostname='node-1')]))}),
    ],
    '``ignore_hosts``': [same(ignore_hosts=['compute-1'])],
    '``requested_destination``': [Field(*destination('compute-4'))],
    '``force_hosts`` and ``force_nodes``': [
        same(force_hosts=['compute-4']), same(force_nodes=['node-4']),
    ],
    'an instance of another project': [
        same(instance_uuids=[THEIR_INSTANCE]),
    ],
    'a server group of another project': [
        Field({'instance_group': THEIR_GROUP}, group(uuid=THEIR_GROUP)),
    ],
    'another one in the hint ``same_host``': [
        same(scheduler_hints={'same_host': [THEIR_INSTANCE]}),
    ],
    'hosts of members of a server group': [
        Field({'group_hosts': ['compute-3']},
              group(uuid=EMPTY_GROUP, hosts=['compute-3']),
              {'instance_group': EMPTY_GROUP}, group(uuid=EMPTY_GROUP)),
    ],
    '``lenient``': [
        Field(*[{'lenient': True}] * 2, *[{'availability_zone': 'none'}] * 2),
    ],
    '``amounts``': [
        Field(*[{'amounts': {'VCPU': 1}}] * 2,
              {'flavor': LARGE}, {'flavor': flavor(**LARGE)}),
    ],
}  # fmt: skip


def came_of(field, face, send, context):
    """Return what comes of a field; None: the face is closed to the caller."""
    ours = face in (OWN, EXPLAIN)
    made, rest = field[not ours], field[2 + (not ours)]
    least = {'flavor': SMALL if ours else flavor(**SMALL)}

    def outcome(sent):
        try:
            return send(context, {**least, **sent})
        except errors.SchedulerError as error:
            return error.name

    without, given = outcome({**rest}), outcome({**rest, **made})
    if without == 'Forbidden' and face == EXPLAIN:
        return None
    if given in ('InvalidRequest', 'Forbidden'):
        return 'refused'
    return 'ignored' if given == without else 'believed'


def word(found):
    """Return one word for all roles, instances and hosts."""
    found -= {None}
    return found.pop() if len(found) == 1 else 'checked'


def test_the_page_says_what_comes_of_each_field(faces):
    table = {
        name: [
            word({came_of(each, face, send, context)
                  for each in fields for context in CALLERS.values()})
            for face, send in faces.items()
        ]
        for name, fields in FIELDS.items()
    }  # fmt: skip
    columns = r'  +(believed|checked|ignored|refused)' * len(FACES)
    rows = re.findall(rf'(?m)^(\S.*?){columns}$', PAGE)
    assert {row[0]: [*row[1:]] for row in rows} == table
