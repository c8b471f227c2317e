"""A shadow beside a scheduler that places instances in real services.

That scheduler is another daemon of ours, with a database of its own; the
cells' rows are written as the compute service writes them.
"""

from __future__ import annotations

import uuid

import pytest
import sqlalchemy as sa

from scheduler_service.compute import shadow as module
from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from scheduler_service.store.records import daemons, decisions
from tests.support import nova_wire, shipped
from tests.support.nova_wire import flavor
from tests.support.shadows import FILTERS, Both
from tests.support.stores import stored_host
from tests.support.tcp_proxy import Mode, through_proxy
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.db]


@pytest.fixture
def both(cloud, service, make_store, rabbitmq):
    made = Both(cloud, service, make_store, rabbitmq)
    made.map_cell0()
    yield made
    made.close()


def size(vcpus=1, **more):
    return flavor(vcpus=vcpus, memory_mb=512, root_gb=1, **more)


def test_what_the_scheduler_takes_counts_for_what_follows(both):
    for number in range(4):
        both.add_host(memory_mb=8192 - number)
    both.start()
    methods = set()
    adapter = both.shadow.adapters[0]._client._adapter
    request = adapter.request

    def noted(path, method, **how):
        methods.add(method)
        return request(path, method, **how)

    adapter.request = noted
    # Each takes the most memory: another host than the one before it.
    taken = []
    for number in range(12):
        taken += both.ask(flavor=size())
        both.wait_for(number + 1)
    assert len({*taken}) == 4
    found = both.wait_for(12)
    assert found.keys() <= {('same', ''), ('equal', '')}
    assert sum(found.values()) == 12
    # What it took counts once, also after all providers are read.
    shadows = both.shadow.store

    def counted():
        return {name: stored_host(shadows, name).vcpus_used
                for name in both.hosts}  # fmt: skip

    used = {name: taken.count(name) for name in both.hosts}
    assert counted() == used
    follower = both.shadow.adapters[0].providers
    both.shadow.adapters[0].mirror.read_all(lambda: None)
    for _ in range(2):
        assert follower.catch_up(both.hosts)
        assert counted() == used
    # Nothing is done for any of it.
    assert methods == {'GET'}
    with shadows.reading() as conn:
        table = schema.stage_records
        assert not conn.execute(sa.select(table.c.stage)).all()


def test_a_refusal_of_both_is_the_same(both):
    both.add_host(vcpus=2)
    both.start()
    assert both.ask(flavor=size(vcpus=2))
    assert both.ask(flavor=size(vcpus=2)) == []
    assert both.wait_for(2) == {('same', ''): 2}


def test_several_instances_and_groups_are_compared_as_a_whole(both):
    for number in range(3):
        both.add_host(memory_mb=8192 - number)
    both.start()
    uuids = [str(uuid.uuid4()) for _ in range(3)]
    group = nova_wire.thing(
        'InstanceGroup', '1.11', uuid=str(uuid.uuid4()), name='g',
        project_id='p1', policy='anti-affinity', _rules={}, members=uuids,
        hosts=[],
    )  # fmt: skip
    assert len({*both.ask(uuids, instance_group=group, flavor=size())}) == 3
    found = both.wait_for(1)
    assert found.keys() <= {('same', ''), ('equal', '')}


def test_a_request_that_is_sent_again_is_one(both):
    both.add_host()
    both.start()
    vm, sent = str(uuid.uuid4()), f'req-{uuid.uuid4()}'
    both.ask([vm], sent, flavor=size())
    both.ask([vm], sent, flavor=size())
    both.ask(flavor=size())
    assert sum(both.wait_for(2).values()) == 2


def test_a_move_that_asks_again_for_other_hosts_is_two_requests(both):
    for number in range(3):
        both.add_host(memory_mb=8192 - number)
    both.start()
    vm, sent = str(uuid.uuid4()), f'req-{uuid.uuid4()}'
    (first,) = both.ask([vm], sent, flavor=size())
    both.wait_for(1)
    # As of a live migration, whose first host turned out to be unfit.
    both.service.call('DELETE', f'/allocations/{vm}')
    both.ask([vm], sent, flavor=size(), ignore_hosts=[first])
    assert sum(both.wait_for(2).values()) == 2


def test_an_instance_without_a_request_is_counted(both):
    both.add_host()
    both.start()
    both.ask(flavor=size())
    both.wait_for(1)
    # As if it was asked for while nobody listened.
    both.cloud.add_instance(None, cell=1)
    wait_until(lambda: both.verdicts().get(('not received', '')) == 1)


def test_what_came_while_it_was_stopped_is_counted_by_its_instances(both):
    both.add_host()
    both.start()
    both.ask(flavor=size())
    both.wait_for(1)
    wait_until(lambda: both.read_until() is not None)
    both.stop_shadow()
    missed = str(uuid.uuid4())
    both.ask([missed], flavor=size())
    both.cloud.add_instance(both.hosts[0], uuid=missed)
    both.start_shadow(store=both.shadow.store)
    wait_until(lambda: both.verdicts().get(('not received', '')) == 1)
    assert both.verdicts()['same', ''] == 1


def test_a_request_of_which_nothing_comes_is_not_known(both, monkeypatch):
    monkeypatch.setattr(module, '_GIVE_UP_S', 1.0)
    both.add_host(vcpus=2)
    both.start()
    both.bury = lambda instance: None
    both.ask(flavor=size(vcpus=8))
    assert both.wait_for(1) == {('not known', 'nothing within 60 s'): 1}


def test_another_fault_is_no_refusal(both):
    both.add_host(vcpus=2)
    both.start()
    bury = both.bury
    both.bury = lambda each: bury(each, 'Build of instance aborted')
    both.ask(flavor=size(vcpus=8))
    assert both.wait_for(1) == {('not known', 'another fault'): 1}


def test_requests_beyond_the_rate_are_not_compared(both):
    both.add_host(vcpus=32, memory_mb=32768)
    both.start(compute__shadow_placement_rate=1.0)
    for _ in range(12):
        both.ask(flavor=size())
    found = both.wait_for(12)
    assert found['not compared', 'shadow_placement_rate'] > 0
    assert sum(found.values()) == 12


def test_what_placement_does_not_say_is_not_known(both, monkeypatch):
    monkeypatch.setattr(module, '_LOOKS_S', (2.0,))
    monkeypatch.setattr(module, '_GIVE_UP_S', 4.0)
    both.add_host()
    both.start()
    both.ask(flavor=size())
    both.service.stop()
    try:
        found = both.wait_for(1)
    finally:
        both.service.start()
    assert found == {('not known', 'PlacementUnavailable'): 1}


def test_no_request_is_lost_while_its_database_is_away(both, make_store):
    both.add_host()
    url = make_store('postgresql', own=True).engine.url
    text = url.render_as_string(hide_password=False)
    with through_proxy(text) as (proxy, proxied):
        store = Store.connect(proxied)
        both.start(store=store)
        both.ask(flavor=size())
        both.wait_for(1)
        health = both.shadow.scheduler.health
        proxy.become(Mode.REFUSE)
        wait_until(lambda: not health.database_reachable)
        both.ask(flavor=size())
        both.ask(flavor=size())
        proxy.become(Mode.FORWARD)
        found = both.wait_for(3)
        assert sum(found.values()) == 3
        assert found.keys() <= {
            ('same', ''), ('in flight', ''),
            ('not compared', 'StoreUnavailable'),
        }  # fmt: skip
        both.stop_shadow()
        store.dispose()


def test_decisions_are_told_apart_and_found_by_the_request(both):
    both.add_host()
    both.start()
    sent = f'req-{uuid.uuid4()}'
    (host,) = both.ask([], sent, flavor=size())
    both.wait_for(1)
    (row,) = both.report()['shadow']
    assert row['request_id'] == sent
    store = both.shadow.store

    def recorded():
        with store.reading() as conn:
            return decisions.show(conn, sent)

    both.shadow.scheduler.recorder.flush()
    (made,) = recorded()
    assert (made['kind'], made['outcome']) == ('shadow', 'chosen')
    assert made['placements'][0]['selected']['host'] == host
    with store.reading() as conn:
        wait_until(lambda: [
            each['state'] for each in daemons.rows(conn, daemons.listing(conn))
        ] == ['shadow'])  # fmt: skip


# Both weigh by memory alone.
ALIKE = {
    f'filter_scheduler__{name}_weight_multiplier': 0.0
    for name in ('cpu', 'disk', 'io_ops', 'build_failure', 'num_instances')
}
# What the shadow has otherwise, filters that it has besides, and how that is
# told. Hosts are named by what they have most of.
DIFFERENCES = [
    ({'ram_weight_multiplier': -1.0}, '', 'another', 'RAMWeigher'),
    ({'cpu_weight_multiplier': 9.0}, '', 'another', 'CPUWeigher'),
    ({'disk_weight_multiplier': 9.0}, '', 'another', 'DiskWeigher'),
    ({'io_ops_weight_multiplier': -9.0}, '', 'another', 'IoOpsWeigher'),
    ({'build_failure_weight_multiplier': 9.0}, '', 'another',
     'BuildFailureWeigher'),
    ({'num_instances_weight_multiplier': -9.0}, '', 'another',
     'NumInstancesWeigher'),
    ({'isolated_hosts': ['ram']}, 'IsolatedHostsFilter', 'another',
     'IsolatedHostsFilter'),
    ({'max_instances_per_host': 1}, 'NumInstancesFilter', 'another',
     'NumInstancesFilter'),
    ({'max_io_ops_per_host': 1}, 'IoOpsFilter', 'another', 'IoOpsFilter'),
    ({'isolated_hosts': ['ram', 'cpu', 'disk', 'idle']},
     'IsolatedHostsFilter', 'refuses', 'IsolatedHostsFilter'),
    ({}, '-ComputeCapabilitiesFilter', 'places', ''),
]  # fmt: skip


def test_each_difference_is_told_once_with_its_cause(both):
    stats = '{"failed_builds": "%d", "io_workload": "%d"}'
    busy, idle = stats % (2, 1), stats % (0, 0)
    names = {
        'ram': both.add_host(32, memory_mb=32768, stats=busy),
        'cpu': both.add_host(vcpus=64, stats=busy),
        'disk': both.add_host(disk_gb=1000, stats=busy),
        'idle': both.add_host(memory_mb=4096, stats=idle),
    }
    both.start(ALIKE, **ALIKE)
    asked = 1
    assert both.ask(flavor=size()) == [names['ram']]
    before = both.wait_for(asked)
    assert before == {('same', ''): 1}
    for options, name, verdict, cause in DIFFERENCES:
        filters = [*shipped.filters(), *([name] if name else [])]
        if name.startswith('-'):
            filters = [
                each for each in shipped.filters() if each != name[1:]
            ]  # fmt: skip
        values = {f'filter_scheduler__{n}': v for n, v in options.items()}
        for key, value in values.items():
            if isinstance(value, list):
                values[key] = [names[each] for each in value]
        both.reconfigure(**{FILTERS: filters, **ALIKE, **values})
        specs = {} if options else {'capabilities:hypervisor_type': 'none'}
        vm = str(uuid.uuid4())
        taken = both.ask([vm], flavor=size(extra_specs=specs))
        assert taken == ([] if specs else [names['ram']]), (options, names)
        asked += 1
        after = both.wait_for(asked)
        new = {key for key in after if after[key] != before.get(key)}
        assert new == {(verdict, cause)}, (options, after)
        before = after
        if taken:
            both.cloud.add_instance(*taken, uuid=vm)
    text = both.report()['summary']
    assert text.startswith('12 requests: 1 on the same or an equal host; 9 on')
    assert text.endswith(
        '1 refused here, by IsolatedHostsFilter: look at these; '
        '1 refused there: look at these'
    )
