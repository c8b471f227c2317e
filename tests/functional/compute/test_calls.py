"""Callers of the compute service's interface get hosts, or clear errors."""

import json
import uuid

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.store import schema
from scheduler_service.store.records import decisions
from scheduler_service.store.workers.host_state_writer import DeleteInstances
from tests.support import nova_wire, servers
from tests.support.compute import CONTEXT, HOSTS, ComputeCaller, hosts_of
from tests.support.databases import DATABASES
from tests.support.nova_wire import flavor, thing
from tests.support.services import BUSES, new_conf
from tests.support.stores import import_inventory
from tests.support.waiting import LIMIT_S, wait_until

import oslo_messaging  # isort: skip

# Those of the compute service that was recorded.
FILTERS = [
    'ComputeFilter',
    'ComputeCapabilitiesFilter',
    'ImagePropertiesFilter',
    'ServerGroupAntiAffinityFilter',
    'ServerGroupAffinityFilter',
]
GROUP = '1cbce090-58db-43ab-acf3-fb4db2d9117a'


@pytest.fixture
def compute(make_compute):
    """A daemon on the bus in this process."""
    return make_compute()


@pytest.fixture(params=BUSES)
def on_each_bus(request, make_compute):
    return make_compute(request.param)


def refused(compute, **fields):
    """Return the remote error with which a request is refused."""
    with pytest.raises(oslo_messaging.RemoteError) as caught:
        compute.select(**fields)
    return caught.value


def claims(store):
    """Return instance -> (host, state)."""
    table = schema.instances
    with store.reading() as conn:
        rows = conn.execute(
            sa.select(table.c.uuid, table.c.host, table.c.state)
        )
        return {row.uuid: (row.host, row.state) for row in rows}


def test_a_chosen_host_comes_first_then_its_alternates(on_each_bus):
    compute = on_each_bus
    instance = str(uuid.uuid4())
    reply = compute.select(uuids=[instance])
    assert hosts_of(reply) == [['compute-1', 'compute-2', 'compute-3']]
    assert claims(compute.store) == {instance: ('compute-1', 'claimed')}
    data = reply[0][0]['nova_object.data']
    assert data['nodename'] == 'node-1'
    assert json.loads(data['allocation_request']) == {
        'allocations': {
            data['compute_node_uuid']: {
                'resources': {'VCPU': 2, 'MEMORY_MB': 2048, 'DISK_GB': 20}
            }
        },
        'mappings': {'': [data['compute_node_uuid']]},
    }


def test_several_instances_have_no_alternate_that_one_of_them_has(compute):
    uuids = [str(uuid.uuid4()) for _ in range(3)]
    listed = hosts_of(compute.select(uuids=uuids, num_instances=3))
    chosen = {each[0] for each in listed}
    assert len(listed) == 3
    assert not any(chosen & {*each[1:]} for each in listed)
    assert {host for host, _ in claims(compute.store).values()} == chosen


def test_more_are_placed_than_the_spec_says_if_their_uuids_are_named(compute):
    uuids = [str(uuid.uuid4()) for _ in range(2)]
    assert len(compute.select(uuids=uuids, num_instances=1)) == 2


def test_recorded_requests_get_a_reply_of_the_recorded_form(make_compute):
    compute = make_compute(filter_scheduler__enabled_filters=FILTERS)
    caller = compute.caller()
    for name in nova_wire.REQUESTS:
        recorded = nova_wire.answered(name)
        if recorded['failure']:
            with pytest.raises(oslo_messaging.RemoteError) as caught:
                caller.send(name)
            assert caught.value.exc_type == 'NoValidHost'
        else:
            assert shape(caller.send(name)) == shape(recorded['result'])


def shape(value):
    """Return the keys of a reply, without its values."""
    if isinstance(value, list):
        return [shape(one) for one in value]
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items()}
    return None


def test_4_4_gets_plain_dicts(compute):
    assert compute.select(version='4.4') == [
        {'host': 'compute-1', 'nodename': 'node-1', 'limits': {
            'vcpu': 256, 'memory_mb': 49150, 'disk_gb': 500,
        }}
    ]  # fmt: skip


def test_other_versions_are_refused_with_what_is_served(compute):
    for version, served in (('4.3', '4.4 to 4.5'), ('4.6', '4.0 to 4.5')):
        error = refused(compute, version=version)
        assert served in error.value
        assert version in error.value


def test_tenants_read_a_short_reason_and_operators_all_of_it(on_each_bus):
    compute = on_each_bus
    error = refused(compute, flavor=flavor(vcpus=4000))
    assert error.exc_type == 'NoValidHost'
    assert error.value == (
        'No valid host was found. There are not enough hosts available.'
    )
    # It is stored after the reply.
    wait_until(lambda: compute.daemon.scheduler.decisions(1))
    with compute.store.reading() as conn:
        (decision,) = decisions.show(conn, CONTEXT['request_id'])
    assert 'CoreFilter' in json.dumps(decision)


def test_reasons_may_go_out_in_full(make_compute):
    compute = make_compute(compute__reason='full')
    assert 'CoreFilter' in refused(compute, flavor=flavor(vcpus=4000)).value


UNKNOWN = [
    ({'force_hosts': ['x']}, 'host: x node: None '),
    ({'force_nodes': ['x']}, 'host: None node: x '),
    (
        {'force_hosts': ['compute-1'], 'force_nodes': ['x']},
        'host: compute-1 node: x ',
    ),
    (
        {
            'requested_destination': thing(
                'Destination', '1.4', host='x', node='y'
            )
        },
        'host: x node: y ',
    ),
]


def test_hosts_are_unknown_by_name_where_they_are_not_there(compute):
    for fields, words in UNKNOWN:
        assert refused(compute, **fields).value == (
            f'No valid host was found. No such host - {words}'
        )
    # One that is there is full.
    error = refused(
        compute, force_hosts=['compute-1'], flavor=flavor(vcpus=4000)
    )
    assert 'not enough hosts' in error.value


def test_arguments_that_cannot_be_read_are_refused(compute):
    for uuids in (['x'], 'x'):
        error = refused(compute, uuids=uuids)
        assert error.exc_type == 'NoValidHost'
        assert 'instance_uuids' in error.value
    groups = [thing('RequestGroup', '1.3', resources={'VGPU': 1})]
    error = refused(compute, requested_resources=groups)
    assert error.exc_type == 'NoValidHost'
    assert 'requested_resources' in error.value
    assert not claims(compute.store)


def test_no_instance_is_refused(compute):
    with pytest.raises(oslo_messaging.RemoteError, match='length >= 1'):
        compute.caller().call(
            '4.5',
            'select_destinations',
            spec_obj=nova_wire.spec(),
            instance_uuids=[],
        )


def group_of(*members, hosts=(), policy='anti-affinity', **rules):
    return {
        'instance_group': thing(
            'InstanceGroup',
            '1.11',
            uuid=GROUP,
            policy=policy,
            members=list(members),
            hosts=list(hosts),
            _rules=rules,
        )
    }


def test_a_group_that_travels_along_keeps_its_members_apart(compute):
    first, second, third = (str(uuid.uuid4()) for _ in range(3))
    one = compute.select(uuids=[first], **group_of(first))
    two = compute.select(uuids=[second], **group_of(first, second))
    chosen = [hosts_of(one)[0][0], hosts_of(two)[0][0]]
    assert len({*chosen}) == 2
    # A member that the store does not know, on a host that it knows.
    left = [name for name in all_hosts() if name not in chosen]
    group = group_of(first, second, third, hosts=[*chosen, left[0]])
    (listed,) = hosts_of(compute.select(uuids=[third], **group))
    assert listed[0] in left[1:]


def all_hosts():
    return [one['host'] for one in HOSTS['hosts']]


def test_a_policy_that_nothing_enforces_restricts_nothing(make_compute):
    """As in the compute service."""
    compute = make_compute(filter_scheduler__enabled_filters=['RamFilter'])
    first, second = (str(uuid.uuid4()) for _ in range(2))
    compute.select(uuids=[first], **group_of(first))
    assert hosts_of(compute.select(uuids=[second], **group_of(first, second)))


def test_a_group_that_travels_along_keeps_its_members_together(compute):
    member = str(uuid.uuid4())
    group = group_of(member, hosts=['compute-4'], policy='affinity')
    assert hosts_of(compute.select(**group)) == [['compute-4']]


def unnamed_group_of(*members, policy='anti-affinity', **more):
    """Return a group as an old instance's request has it."""
    found = group_of(*members, policy=policy)
    data = found['instance_group']['nova_object.data']
    for name in ('uuid', 'policy', '_rules'):
        del data[name]
    data.update(policies=[policy], **more)
    return found


def test_a_group_without_a_uuid_is_known_by_its_members(compute):
    first, second, third = (str(uuid.uuid4()) for _ in range(3))
    chosen = [
        hosts_of(compute.select(uuids=[one], **unnamed_group_of(*members)))
        for one, members in (
            (first, [first]),
            (second, [first, second]),
            # The first one is gone from the group.
            (third, [second, third]),
        )
    ]
    assert len({listed[0] for (listed,) in chosen}) == 3
    # A move of the first, and a new one, with its members on every host.
    (moved,) = hosts_of(
        compute.select(uuids=[first], **unnamed_group_of(first, second, third))
    )
    assert moved[0] not in {listed[0] for (listed,) in chosen[1:]}
    new = str(uuid.uuid4())
    everywhere = unnamed_group_of(third, new, hosts=all_hosts())
    error = refused(compute, uuids=[new], **everywhere)
    assert 'not enough hosts' in error.value


def test_a_group_without_a_uuid_is_the_stored_one_of_a_member(compute):
    first, second = (str(uuid.uuid4()) for _ in range(2))
    ((here, *_),) = hosts_of(compute.select(uuids=[first], **group_of(first)))
    group = unnamed_group_of(first, second)
    ((there, *_),) = hosts_of(compute.select(uuids=[second], **group))
    assert here != there
    stored = compute.service.daemon.scheduler.snapshot().hosts.groups
    assert stored.keys() == {GROUP}
    ((moved, *_),) = hosts_of(compute.select(uuids=[first], **group))
    assert moved != there


def test_a_group_without_a_uuid_or_members_is_of_the_request(compute):
    uuids = [str(uuid.uuid4()) for _ in range(3)]
    for group in (unnamed_group_of(), unnamed_group_of(members=None)):
        listed = hosts_of(compute.select(uuids=uuids, **group))
        assert len({each[0] for each in listed}) == 3


def test_a_group_of_several_is_kept_within_one_request(compute):
    uuids = [str(uuid.uuid4()) for _ in range(5)]
    listed = hosts_of(compute.select(uuids=uuids, **group_of(*uuids)))
    assert len({each[0] for each in listed}) == 5
    error = refused(compute, **group_of(*uuids))
    assert 'not enough hosts' in error.value


def test_a_retry_gives_up_the_host_that_failed(compute):
    instance = str(uuid.uuid4())
    compute.select(uuids=[instance])
    retry = thing(
        'SchedulerRetries',
        '1.1',
        num_attempts=2,
        hosts=thing(
            'ComputeNodeList',
            '1.17',
            objects=[
                thing(
                    'ComputeNode',
                    '1.19',
                    host='compute-1',
                    hypervisor_hostname='node-1',
                )
            ],
        ),
    )
    reply = compute.select(uuids=[instance], retry=retry)
    assert hosts_of(reply)[0][0] == 'compute-2'
    assert claims(compute.store) == {instance: ('compute-2', 'claimed')}


def test_an_instance_that_a_host_has_moves(compute):
    instance = str(uuid.uuid4())
    compute.select(uuids=[instance])
    snapshot = compute.daemon.scheduler.snapshot
    confirmed = compute.daemon.scheduler.confirm([instance])
    assert confirmed.result(LIMIT_S) == [instance]
    assert snapshot().hosts.instances.get(instance)
    reply = compute.select(uuids=[instance], ignore_hosts=['compute-1'])
    assert hosts_of(reply)[0][0] == 'compute-2'
    with compute.store.reading() as conn:
        moves = conn.execute(sa.select(schema.moves.c.host)).scalars().all()
    assert moves == ['compute-2']
    assert claims(compute.store)[instance] == ('compute-1', 'confirmed')


def test_a_member_moves_by_the_policy_of_its_group(compute):
    """The request spec need not have the group."""
    first, second = (str(uuid.uuid4()) for _ in range(2))
    compute.select(uuids=[first], **group_of(first))
    compute.select(uuids=[second], **group_of(first, second))
    compute.daemon.scheduler.confirm([first, second]).result(LIMIT_S)
    reply = compute.select(uuids=[first], ignore_hosts=['compute-1'])
    assert hosts_of(reply)[0][0] == 'compute-3'
    lost = compute.daemon.scheduler.health.counters().get('claims_lost', 0)
    assert lost == 0


def test_an_instance_may_move_within_its_host(compute):
    """The conductor names the host that it must leave, if it must."""
    instance = str(uuid.uuid4())
    only = {'uuids': [instance], 'force_hosts': ['compute-1']}
    compute.select(**only)
    compute.daemon.scheduler.confirm([instance]).result(LIMIT_S)
    for _ in range(2):
        assert hosts_of(compute.select(**only))[0][0] == 'compute-1'
        with compute.store.reading() as conn:
            moves = conn.execute(sa.select(schema.moves.c.host)).scalars()
            assert moves.all() == ['compute-1']
        assert claims(compute.store)[instance] == ('compute-1', 'confirmed')
    # The host removes what the instance was before, and says so.
    writer = compute.daemon.scheduler.host_state_writer
    for removed in [instance], []:
        gone = DeleteInstances(host='compute-1', uuids=[instance])
        assert writer.submit(gone).result(LIMIT_S) == removed
        assert claims(compute.store)[instance] == ('compute-1', 'confirmed')


@pytest.fixture(
    params=[
        pytest.param(one, marks=[pytest.mark.db] * (one != 'sqlite'))
        for one in DATABASES
    ]
)
def resize(request, make_compute):
    """Give a function that resizes an instance of 3 of 4 GB: the only host.

    It returns the host, and how many MB are in use.
    """
    host = {'host': 'only', 'vcpus': 8, 'memory_mb': 4096, 'local_gb': 30}
    compute = make_compute(
        database=request.param,
        inventory={'hosts': [{**host, 'ram_allocation_ratio': 1.0}]},
    )
    instance = str(uuid.uuid4())
    compute.select(uuids=[instance], flavor=flavor(memory_mb=3072))
    compute.daemon.scheduler.confirm([instance]).result(LIMIT_S)

    def resized(memory, total=4096, **fields):
        changed = {**host, 'ram_allocation_ratio': 1.0, 'memory_mb': total}
        import_inventory(compute.store, {'hosts': [changed]})
        compute.daemon.scheduler.drop_moves([instance]).result(LIMIT_S)
        answer = compute.select(
            uuids=[instance], flavor=flavor(memory_mb=memory), **fields
        )
        with compute.store.reading() as conn:
            used = conn.exec_driver_sql(
                'SELECT used FROM inventories '
                "WHERE resource_class = 'MEMORY_MB'"
            ).scalar_one()
        return hosts_of(answer)[0][0], used

    return resized


def test_the_larger_size_counts_in_a_resize_within_a_host(resize):
    assert resize(4096) == ('only', 4096)
    # With fewer hosts it has less room; what is smaller fits in any case.
    assert resize(1024, total=2048) == ('only', 3072)
    for memory, how in (
        (4097, {}),
        (3073, {'total': 2048}),
        # It must leave its host.
        (1024, {'ignore_hosts': ['only']}),
    ):
        with pytest.raises(oslo_messaging.RemoteError):
            resize(memory, **how)


def test_a_later_request_gives_up_what_an_earlier_one_claimed(compute):
    instance = str(uuid.uuid4())
    first = compute.select(uuids=[instance], force_hosts=['compute-3'])
    again = compute.select(uuids=[instance])
    assert hosts_of(first)[0][0] == 'compute-3'
    assert hosts_of(again)[0][0] == 'compute-1'
    assert claims(compute.store) == {instance: ('compute-1', 'claimed')}


def test_a_move_that_came_to_nothing_is_given_up(compute):
    instance = str(uuid.uuid4())
    compute.select(uuids=[instance])
    compute.daemon.scheduler.confirm([instance]).result(LIMIT_S)
    compute.select(uuids=[instance], force_hosts=['compute-4'])
    compute.select(uuids=[instance], force_hosts=['compute-5'])
    with compute.store.reading() as conn:
        moves = conn.execute(sa.select(schema.moves.c.host)).scalars().all()
    assert moves == ['compute-5']
    assert claims(compute.store)[instance] == ('compute-1', 'confirmed')


def test_fanouts_are_counted_and_stored(on_each_bus):
    compute = on_each_bus
    caller = compute.caller()
    for name in ('agg', 'info', 'sync', 'del', 'aggdel'):
        caller.fanout(name)
    methods = (
        'update_aggregates',
        'update_instance_info',
        'sync_instance_info',
        'delete_instance_info',
        'delete_aggregate',
    )
    health = compute.daemon.scheduler.health
    wait_until(
        lambda: (
            health.counters().get('compute_changes')
            == dict.fromkeys(methods, 1)
        )
    )
    synced = nova_wire.sent('sync')['args']['instance_uuids']
    wait_until(lambda: list(claims(compute.store)) == synced)


def test_our_own_interface_is_served_beside_it(compute):
    assert compute.service.client.ping(CONTEXT | {'roles': ['admin']})


def test_both_interfaces_cannot_have_one_queue(make_service):
    with pytest.raises(errors.ConfigurationError, match=r'\[compute\] topic'):
        make_service(
            compute__enabled=True,
            compute__topic='one',
            scheduler__topic='one',
        )


@pytest.mark.broker
def test_the_compute_service_may_have_a_bus_of_its_own(make_compute, rabbitmq):
    url = servers.new_vhost(*rabbitmq)
    compute = make_compute(
        compute__transport_url=url,
        compute__topic='scheduler',
        scheduler__topic='scheduler',
    )
    caller = ComputeCaller(url, 'scheduler')
    assert hosts_of(caller.select())[0][0] == 'compute-1'
    assert compute.service.select_hosts() == ['compute-2']
    caller.transport.cleanup()


def test_the_interface_is_off_by_default():
    assert new_conf().compute.enabled is False
