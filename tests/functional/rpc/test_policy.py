"""Who may do what: each method for each kind of caller."""

import uuid

import pytest

from scheduler_service import errors, policies
from scheduler_service.model import ServerGroup
from scheduler_service.rpc.endpoints import (
    HostStateEndpoint,
    SchedulerEndpoint,
)
from scheduler_service.rpc.server import methods
from scheduler_service.store.writing import server_groups
from tests.support.documents import GOLD_POOL, NOBODY, OWNER, SERVICE, STRANGER
from tests.support.services import shared
from tests.support.waiting import LIMIT_S

# All claims of the module have room.
SMALL = {'memory_mb': 1}
GROUP = '55555555-0000-4000-8000-000000000001'
CALLERS = {
    'nobody': NOBODY,
    'other project': STRANGER,
    'owner': OWNER,
    'service': SERVICE,
    'admin': {'user_id': 'a', 'roles': ['admin']},
}
OWNERS = ['owner', 'service', 'admin']
SERVICES = ['service', 'admin']
ADMINS = ['admin']


def claimed(service, project='p'):
    """Return an instance of a project, which holds a claim."""
    answer = service.client.select_destinations(
        CALLERS['admin'], {'flavor': SMALL, 'project_id': project}
    )
    return answer['placements'][0]['instance_uuid']


def moving(service):
    """Return an instance of project p that holds the claim of a move."""
    one = claimed(service)
    service.client.select_destinations(
        CALLERS['admin'],
        {'flavor': SMALL, 'project_id': 'p', 'instance_uuids': [one]},
        move=True,
    )
    return one


def placed_zone(service):
    """Return a zone of project p that has a pool."""
    zone = {'name': f'{uuid.uuid4().hex}.', 'id': str(uuid.uuid4())}
    zone['project_id'] = 'p'
    service.client.schedule_zone(CALLERS['admin'], zone)
    return zone


def select(context, service, **more):
    request = {'flavor': SMALL, 'project_id': 'p', **more}
    return service.client.select_destinations(context, request)


def batch(context, service):
    """Send a request in a batch; raise its error."""
    (one,) = service.client.schedule_many(
        context,
        [{'select_destinations': {'flavor': SMALL, 'project_id': 'p'}}],
    )
    if 'error' in one:
        raise getattr(errors, one['error']['name'])(one['error']['message'])


def selecting(**more):
    """Return what selects for an instance of project p."""
    return lambda context, service: select(context, service, **more)


def scheduling(keep=True, **fields):
    """Return what schedules a zone of project p."""

    def act(context, service):
        zone = {'name': f'{uuid.uuid4().hex}.', 'project_id': 'p', **fields}
        service.client.schedule_zone(context, zone, keep=keep)

    return act


def changing(method, make=claimed):
    """Return what changes the claim of an instance."""
    return lambda context, service: getattr(service.client, method)(
        context, [make(service)]
    )


def report(method, **args):
    """Return what calls one of the methods for reports."""
    return lambda context, service: service.client.call(
        context, method, **args
    )


def own(context):
    """Return the project of which a caller says that something is."""
    return context.get('project_id', 'p')


SELECT, FORCE = 'select_destinations', 'select_destinations:forced_host'
# (rule, what is done) -> who may do it. Everything belongs to project p.
WAYS = {
    (SELECT, 'select'): (selecting(), OWNERS),
    (SELECT, 'join a group'): (selecting(instance_group=GROUP), OWNERS),
    (SELECT, 'read the placement of a claim'): (
        lambda context, service: select(
            context, service, instance_uuids=[claimed(service)],
            project_id=own(context),
        ),
        OWNERS,
    ),
    (SELECT, 'move'): (
        lambda context, service: service.client.select_destinations(
            context, {'flavor': SMALL, 'instance_uuids': [claimed(service)]},
            move=True,
        ),
        OWNERS,
    ),
    (FORCE, 'a host'): (selecting(force_hosts=['compute-1']), ADMINS),
    (FORCE, 'a node'): (selecting(force_nodes=['compute-1']), ADMINS),
    (FORCE, 'a required host'): (
        selecting(requested_destination={'host': 'compute-1'}), ADMINS,
    ),
    (FORCE, 'a required node'): (
        selecting(requested_destination={'node': 'compute-1'}), ADMINS,
    ),
    ('select_destinations:dry_run', 'select without a claim'): (
        lambda context, service: service.client.select_destinations(
            context, {'flavor': SMALL, 'project_id': 'p'}, claim=False
        ),
        ADMINS,
    ),
    ('schedule_zone', 'schedule'): (scheduling(), OWNERS),
    ('schedule_zone', 'read the pool of a zone'): (
        lambda context, service: service.client.schedule_zone(
            context, {**placed_zone(service), 'project_id': own(context)},
        ),
        OWNERS,
    ),
    ('schedule_zone:dry_run', 'store nothing'): (scheduling(False), ADMINS),
    ('zone_create_forced_pool', 'name the pool'): (
        scheduling(attributes={'pool_id': GOLD_POOL}), ADMINS,
    ),
    ('schedule_many', 'select'): (batch, OWNERS),
    ('release', 'release'): (changing('release'), OWNERS),
    ('confirm', 'confirm'): (changing('confirm'), OWNERS),
    ('drop_moves', 'drop a move'): (changing('drop_moves', moving), OWNERS),
    ('explain', 'explain'): (
        lambda context, service: service.client.explain(
            context, {'flavor': SMALL, 'project_id': 'p'}
        ),
        ADMINS,
    ),
    ('ping', 'ping'): (
        lambda context, service: service.client.ping(context), ADMINS,
    ),
    ('update_host_state', 'add a host'): (
        report('update_host_state', hosts=[{'host': 'new', 'vcpus': 1}]),
        SERVICES,
    ),
    ('heartbeat', 'send a heartbeat'): (
        report('heartbeat', hosts=['compute-1']), SERVICES,
    ),
    ('update_instance_info', 'report an instance'): (
        report('update_instance_info', host_name='compute-1',
               instance_info={'uuid': str(uuid.uuid4())}),
        SERVICES,
    ),
    ('delete_instance_info', 'report that an instance is gone'): (
        report('delete_instance_info', host_name='compute-1',
               instance_uuid=str(uuid.uuid4())),
        SERVICES,
    ),
    ('sync_instance_info', 'report all instances'): (
        report('sync_instance_info', host_name='compute-1',
               instance_uuids=[]),
        SERVICES,
    ),
    ('update_aggregates', 'add an aggregate'): (
        report('update_aggregates', aggregates=[{'id': 7, 'hosts': []}]),
        ADMINS,
    ),
    ('delete_aggregate', 'remove an aggregate'): (
        report('delete_aggregate', aggregate=7), ADMINS,
    ),
}  # fmt: skip


@pytest.fixture(scope='module')
def guarded(tmp_path_factory):
    """A daemon with a server group of project p."""
    with shared(
        tmp_path_factory.mktemp('guarded'),
        pool_scheduler__scheduler_filters=['pool_id_attribute', 'random'],
        filter_scheduler__enabled_filters=[
            'RamFilter', 'ServerGroupAntiAffinityFilter',
        ],
    ) as service:  # fmt: skip
        add_group(service, GROUP, 'p')
        yield service


def add_group(service, number, project):
    group = ServerGroup(uuid=number, project_id=project)
    service.store.write(lambda writer: server_groups.create(writer, group))


def test_every_method_has_a_rule_and_is_walked():
    served = methods(SchedulerEndpoint) | methods(HostStateEndpoint)
    assert served <= {*policies.method_rules()}
    assert served <= {rule for rule, _ in WAYS}


@pytest.mark.parametrize('name', CALLERS)
def test_a_caller_may_do_what_the_policy_allows_when_it_is(name, guarded):
    allowed = {}
    for way, (act, _) in WAYS.items():
        try:
            act(CALLERS[name], guarded)
        except errors.Forbidden:
            allowed[way] = False
        else:
            allowed[way] = True
    assert allowed == {way: name in may for way, (_, may) in WAYS.items()}


def test_the_error_names_the_rule_and_the_instance(guarded):
    one = claimed(guarded)
    with pytest.raises(errors.Forbidden) as caught:
        guarded.client.release(STRANGER, [one])
    assert caught.value.facts == {'rule': 'release', 'on': f'instance {one}'}
    # Of a project that the caller has, no word that it has none.
    with pytest.raises(errors.Forbidden) as caught:
        guarded.client.ping(OWNER)
    assert caught.value.facts == {'rule': 'ping'}
    assert 'names no project' not in str(caught.value)


def test_claims_stay_as_they_are_when_another_project_asks(guarded):
    mine, theirs = claimed(guarded, 'q'), claimed(guarded)
    for method in ('release', 'confirm', 'drop_moves'):
        with pytest.raises(errors.Forbidden):
            guarded.client.call(STRANGER, method, instances=[mine, theirs])
    # Neither of them was confirmed or released.
    for context, one in ((STRANGER, mine), (OWNER, theirs)):
        assert guarded.client.confirm(context, [one]) == [one]
        assert guarded.client.release(context, [one]) == [one]


def test_a_request_without_a_project_is_the_callers(guarded):
    answer = guarded.client.select_destinations(OWNER, {'flavor': SMALL})
    one = answer['placements'][0]['instance_uuid']
    zone = {'name': 'mine.', 'id': str(uuid.uuid4())}
    pool = guarded.client.schedule_zone(OWNER, zone)
    with pytest.raises(errors.Forbidden):
        guarded.client.release(STRANGER, [one])
    with pytest.raises(errors.Forbidden):
        guarded.client.schedule_zone(STRANGER, zone)
    again = guarded.client.schedule_zone(OWNER, zone)
    assert again['pool_id'] == pool['pool_id']
    assert guarded.client.release(OWNER, [one]) == [one]


def test_an_instance_of_no_project_is_nobodys(guarded):
    answer = guarded.client.select_destinations(
        CALLERS['admin'], {'flavor': SMALL}
    )
    one = answer['placements'][0]['instance_uuid']
    for name in ('nobody', 'owner'):
        with pytest.raises(errors.Forbidden):
            guarded.client.release(CALLERS[name], [one])
    assert guarded.client.release(SERVICE, [one]) == [one]


def test_a_group_is_joined_by_its_project_and_one_of_none_by_all(guarded):
    number = str(uuid.uuid4())
    add_group(guarded, number, None)
    request = {'flavor': SMALL, 'instance_group': number}
    for context in (OWNER, STRANGER):
        guarded.client.select_destinations(context, request)
    with pytest.raises(errors.Forbidden, match=GROUP):
        guarded.client.select_destinations(
            STRANGER, {'flavor': SMALL, 'instance_group': GROUP}
        )


def test_an_entry_is_forbidden_when_it_is_another_projects(guarded):
    entries = [
        {'select_destinations': {'flavor': SMALL, 'project_id': project}}
        for project in ('q', 'p')
    ]
    entries.append({'schedule_zone': {'name': 'c.', 'project_id': 'p'}})
    entries.append(
        {'select_destinations': {'flavor': SMALL, 'force_hosts': ['a']}}
    )
    replies = guarded.client.schedule_many(STRANGER, entries)
    assert ['result' in reply for reply in replies] == [
        True,
        False,
        False,
        False,
    ]
    assert {reply['error']['name'] for reply in replies[1:]} == {'Forbidden'}
    assert replies[3]['error']['facts'] == {
        'rule': 'select_destinations:forced_host'
    }


def test_a_cast_gets_the_error_when_it_is_forbidden(guarded):
    answers = guarded.answers('conductor')
    guarded.client.select_destinations_cast(
        STRANGER,
        {'flavor': SMALL, 'project_id': 'p'},
        reply_to={'topic': 'conductor'},
    )
    assert answers.get(timeout=LIMIT_S)['error']['name'] == 'Forbidden'


def test_the_policy_file_changes_who_may_do_what(make_service, tmp_path):
    path = tmp_path / 'policy.yaml'
    path.write_text('"ping": "role:member"\n"release": "rule:admin_required"')
    service = make_service(oslo_policy__policy_file=str(path))
    service.client.ping(OWNER)
    one = claimed(service)
    with pytest.raises(errors.Forbidden):
        service.client.release(OWNER, [one])


def test_start_is_refused_when_the_policy_cannot_be_used(
    make_service, tmp_path
):
    path = tmp_path / 'policy.yaml'
    path.write_text('"ping": "rule:nothing"')
    with pytest.raises(errors.ConfigurationError, match='ping'):
        make_service(oslo_policy__policy_file=str(path))


def test_a_uuid_belongs_to_the_project_that_uses_it_first(service):
    """Its owner gets it once that project or a service releases it."""
    ask = service.client.select_destinations
    for releaser in (STRANGER, SERVICE):
        one = str(uuid.uuid4())
        request = {'flavor': SMALL, 'instance_uuids': [one]}
        ask(STRANGER, request)
        with pytest.raises(errors.Forbidden):
            ask(OWNER, request)
        with pytest.raises(errors.Forbidden):
            service.client.release(OWNER, [one])
        service.client.release(releaser, [one])
        ask(OWNER, request)
        with pytest.raises(errors.Forbidden):
            ask(STRANGER, request)
    zone = {'name': f'{uuid.uuid4().hex}.', 'id': str(uuid.uuid4())}
    service.client.schedule_zone(STRANGER, zone)
    with pytest.raises(errors.Forbidden):
        service.client.schedule_zone(OWNER, zone)
