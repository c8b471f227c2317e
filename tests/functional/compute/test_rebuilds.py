"""What only checks a rebuild is looked up; a hint of the caller is not."""

import uuid

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.compute.endpoint import RebuildCheck
from scheduler_service.compute.translation import translate
from scheduler_service.store import schema
from tests.support.compute import CONTEXT, HOSTS, hosts_of
from tests.support.nova_wire import flavor, spec, thing
from tests.support.stores import import_inventory

import oslo_messaging  # isort: skip

ADMIN = {**CONTEXT, 'roles': ['admin']}

HINT = {'_nova_check_type': ['rebuild']}
THERE = str(uuid.uuid4())
# Of the hosts, one is full, and one is disabled.
CHANGED = {
    'compute-2': {'memory_mb_used': 65536},
    'compute-3': {'status': 'disabled'},
}
STORED = {
    'hosts': [{**host, **CHANGED.get(host['host'], {})}
              for host in HOSTS['hosts']],
    'aggregates': [
        {'id': 1, 'name': 'z', 'hosts': ['compute-4'],
         'metadata': {'availability_zone': 'north'}},
    ],
    'instances': [
        {'uuid': THERE, 'host': 'compute-2',
         'hypervisor_hostname': 'node-2',
         'project_id': 'a' * 32},
    ],
}  # fmt: skip
LARGE = flavor(vcpus=1000)
ASKED = {
    'force_hosts': ['compute-2'],
    'force_nodes': ['node-2'],
    'scheduler_hints': HINT,
}
DESTINATION = thing('Destination', '1.4', host='compute-2', node='node-2')
FILTERS = ['AvailabilityZoneFilter', 'ComputeFilter', 'RamFilter']
# Fields of a request -> the hosts that may come of it: as without the hint.
FORGED = {
    'too large': ({'flavor': LARGE}, set()),
    'another zone': ({'availability_zone': 'north'}, {'compute-4'}),
    'a trait': (
        {'flavor': flavor(extra_specs={'trait:CUSTOM_A': 'required'})},
        set(),
    ),
    'disabled': ({'force_hosts': []}, {'compute-1', 'compute-4', 'compute-5'}),
    'forced elsewhere': (
        {'uuids': [THERE], 'force_hosts': ['compute-1']},
        {'compute-1'},
    ),
    'an unknown instance': ({**ASKED, 'force_nodes': []}, set()),
    'one of two': (
        {'uuids': [THERE, str(uuid.uuid4())], 'force_hosts': ['compute-2']},
        set(),
    ),
    'one of two hosts': (
        {'uuids': [THERE], 'force_hosts': ['compute-1', 'compute-2'],
         'flavor': LARGE},
        set(),
    ),
    'another node': (
        {'uuids': [THERE], 'force_hosts': ['compute-2'],
         'force_nodes': ['node-1']},
        set(),
    ),
    'no host': ({'uuids': [THERE], 'flavor': LARGE}, set()),
}  # fmt: skip


@pytest.fixture
def compute(make_compute):
    return make_compute(
        inventory=STORED,
        filter_scheduler__enabled_filters=FILTERS,
    )


def claims(store):
    """Return instance -> host of what holds a claim."""
    table = schema.instances.c
    query = sa.select(table.uuid, table.host).where(table.state == 'claimed')
    moving = sa.select(schema.moves.c.instance_uuid, schema.moves.c.host)
    with store.reading() as conn:
        return {
            uuid: host
            for each in (query, moving)
            for uuid, host in conn.execute(each)
        }


@pytest.mark.parametrize('kind', FORGED)
def test_a_forged_hint_changes_nothing(compute, kind):
    fields, expected = FORGED[kind]
    uuids = fields.get('uuids', [str(uuid.uuid4())])
    fields = {**fields, 'scheduler_hints': HINT, 'uuids': uuids}
    if expected:
        (hosts,) = hosts_of(compute.select(**fields))
        assert {*hosts} <= expected
        assert claims(compute.store) == {uuids[0]: hosts[0]}
        return
    with pytest.raises(oslo_messaging.RemoteError) as caught:
        compute.select(**fields)
    assert caught.value.exc_type == 'NoValidHost'
    assert 'another request' not in caught.value.value
    assert not claims(compute.store)


@pytest.mark.parametrize(
    'asked',
    [
        ASKED,
        {'force_hosts': ['COMPUTE-2']},
        {'force_nodes': ['node-2']},
        {'requested_destination': DESTINATION},
    ],
)
def test_a_rebuild_passes_on_its_full_host(compute, asked):
    asked = {**asked, 'scheduler_hints': HINT, 'uuids': [THERE]}
    assert hosts_of(compute.select(**asked)) == [['compute-2']]
    assert not claims(compute.store)


def test_an_unknown_instance_is_claimed_on_its_forced_host(compute):
    instance = str(uuid.uuid4())
    asked = {'force_hosts': ['compute-1'], 'scheduler_hints': HINT}
    reply = compute.select(uuids=[instance], **asked)
    assert hosts_of(reply) == [['compute-1']]
    assert claims(compute.store) == {instance: 'compute-1'}


@pytest.mark.parametrize(
    ('asked', 'is_one', 'reads'),
    [
        (ASKED, True, 1),
        ({**ASKED, 'force_hosts': ['compute-1']}, False, 1),
        # What a user can ask delays nobody.
        ({'scheduler_hints': HINT}, False, 0),
    ],
)
def test_the_databases_are_read_once_at_most(make_store, asked, is_one, reads):
    store = make_store('sqlite')
    import_inventory(store, HOSTS)
    done = []

    def catch_up():
        done.append(1)
        import_inventory(store, STORED)

    check = RebuildCheck(store, lambda: None, catch_up)
    request = translate(spec(**asked), [THERE], CONTEXT).request
    check.verify(request, CONTEXT)
    assert request.is_rebuild == is_one
    assert len(done) == reads


def test_the_log_names_each_caller_once(compute, caplog):
    for _ in range(2):
        compute.select(scheduler_hints=HINT)
    logged = [
        record.getMessage()
        for record in caplog.records
        if 'is no rebuild' in record.getMessage()
    ]
    assert len(logged) == 1
    assert f'project {CONTEXT["project_id"]}' in logged[0]


@pytest.mark.parametrize(
    ('fields', 'expected'),
    [
        ({'flavor': LARGE}, []),
        ({'availability_zone': 'north'}, ['compute-4']),
        ({}, ['compute-1', 'compute-4', 'compute-5']),
        ({'flavor': flavor(extra_specs={'trait:CUSTOM_A': 'required'})}, []),
        ({'force_hosts': ['compute-1']}, ['compute-1']),
        ({'instance_uuid': THERE, **ASKED}, ['compute-2']),
        (
            {'instance_uuid': THERE, **ASKED, 'availability_zone': 'north',
             'flavor': LARGE},
            ['compute-2'],
        ),
    ],
)  # fmt: skip
def test_the_external_call_looks_it_up(serve_external, fields, expected):
    client = serve_external(
        inventory=STORED,
        filter_scheduler__enabled_filters=[*FILTERS, 'CoreFilter'],
    )
    body = {
        'spec': spec(**{'scheduler_hints': HINT, **fields}),
        'context': CONTEXT,
        'hosts': [{'host': f'compute-{n}'} for n in range(1, 6)],
        'weights': {},
    }
    path = '/scheduler/nova/external'
    status, answer = client.send('POST', path, body)
    assert (status, sorted(answer['hosts'])) == (200, expected)


@pytest.mark.parametrize('hint', ['rebuild', ['rebuild'], ['other'], None])
def test_the_hint_of_a_rebuild_is_refused_on_our_own_interface(hint, compute):
    request = {'flavor': {'vcpus': 1},
               'scheduler_hints': {'_nova_check_type': hint}}  # fmt: skip
    client = compute.service.client
    for call in (client.select_destinations, client.explain):
        with pytest.raises(errors.InvalidRequest) as caught:
            call(ADMIN, request)
        at = caught.value.facts['at']
        assert at == 'scheduler_hints._nova_check_type'
    (item,) = client.schedule_many(CONTEXT, [{'select_destinations': request}])
    assert item['error']['facts']['at'] == at
