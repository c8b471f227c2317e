"""Capacity from the placement service, and claims of daemons in it."""

import time

import pytest

from scheduler_service import errors
from scheduler_service.compute.follower import providers
from tests.support.engines import Message
from tests.support.nova_databases import utc_now
from tests.support.placement_claims import (
    FLAVOR,
    TAKEN,
    add_host,
    new,
    ready,
    request,
    select,
)
from tests.support.stores import claim_state, stored_host
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def started(cloud, service, start_claiming):
    """A daemon that knows one host: it, the host's name and its provider."""
    name, provider = add_host(cloud, service)
    daemon = start_claiming()
    ready(daemon, name)
    return daemon, name, provider


def test_claims_are_in_placement_and_capacity_from_it(
    cloud, service, start_claiming
):
    name, on = add_host(
        cloud, service, VCPU={'total': 8, 'reserved': 6},
        MEMORY_MB=8192, DISK_GB=100, CUSTOM_FPGA=1,
    )  # fmt: skip
    daemon = start_claiming()
    ready(daemon, name)
    vm = new()
    extra = {'extra_specs': {'resources:CUSTOM_FPGA': '1'}}
    assert select(daemon, vm, flavor={**FLAVOR, **extra}) == [name]
    assert service.held(vm) == {on: {**TAKEN, 'CUSTOM_FPGA': 1}}
    allocated = service.call('GET', f'/allocations/{vm}')
    assert allocated['project_id'] == 'p1'
    assert allocated['user_id'] == 'u1'
    second = new()
    assert select(daemon, second) == [name]
    with pytest.raises(errors.NoValidHost):
        select(daemon, new())
    # Its use is in placement and in our claims, and counts once.
    follower = daemon.adapters[0].providers

    def counts_once() -> bool:
        follower.touch([name])
        follower.poll()
        return stored_host(daemon.store, name).vcpus_used == 2

    wait_until(counts_once)


def test_a_host_that_comes_back_has_its_capacity_again(cloud, started):
    daemon, name, _ = started
    cloud.delete(cloud.api, 'host_mappings', host=name)
    wait_until(lambda: stored_host(daemon.store, name) is None)
    cloud.insert(cloud.api, 'host_mappings', host=name, cell_id=2)
    ready(daemon, name)
    assert select(daemon, new()) == [name]


def test_a_delivery_again_finds_or_makes_the_same_claim(service, started):
    daemon, _name, on = started
    vm = new()
    message = Message('select_destinations', (request(vm),))
    first = message.run(daemon.scheduler)
    assert message.run(daemon.scheduler) == first
    assert service.held(vm) == {on: TAKEN}
    # As if the daemon had died between the store and placement.
    service.call('DELETE', f'/allocations/{vm}')
    assert message.run(daemon.scheduler) == first
    assert service.held(vm) == {on: TAKEN}
    daemon.scheduler.release([vm]).result(LIMIT_S)
    wait_until(lambda: service.held(vm) == {})


def bounded(**bounds):
    """Return an inventory that bounds single allocations."""
    return {'total': 100, **bounds}


def units(daemon, name):
    """Return what the engine knows of a host's bounds for VCPU."""
    table = daemon.scheduler.snapshot().hosts
    (row,) = table.rows_of_hosts({name})
    columns = table.resources['VCPU']
    return tuple(
        int(one[row])
        for one in (columns.min_unit, columns.max_unit, columns.step_size)
    )


def test_a_host_that_placement_would_refuse_is_not_selected(
    cloud, service, start_claiming
):
    rest = {'MEMORY_MB': 8192, 'DISK_GB': 100}
    names = {
        kind: add_host(cloud, service, VCPU=bounded(**bounds), **rest)[0]
        for kind, bounds in (
            ('small', {'max_unit': 2}),
            ('even', {'step_size': 2, 'min_unit': 2}),
        )
    }
    daemon = start_claiming(compute__placement_interval=2.0)
    ready(daemon, *names.values())
    # Nothing is touched: they are read one after the other.
    wait_until(lambda: units(daemon, names['small']) == (1, 2, 1))
    wait_until(lambda: units(daemon, names['even'])[::2] == (2, 2))
    for vcpus, kind in ((4, 'even'), (1, 'small'), (2, ''), (3, None)):
        asked = {'flavor': {**FLAVOR, 'vcpus': vcpus}}
        if kind is None:
            with pytest.raises(errors.NoValidHost):
                select(daemon, new(), **asked)
        else:
            (found,) = select(daemon, new(), **asked)
            assert not kind or found == names[kind]
    # It did not take a refusal of the service to learn that.
    assert not daemon.scheduler.health.counters().get('placement_claims_lost')


def test_limits_are_known_again_after_a_start(cloud, service, start_claiming):
    name, _ = add_host(
        cloud, service, VCPU=bounded(max_unit=2), MEMORY_MB=8192, DISK_GB=100
    )
    first = start_claiming(compute__placement_interval=2.0)
    ready(first, name)
    wait_until(lambda: units(first, name) == (1, 2, 1))
    second = start_claiming(first, compute__placement_interval=3600.0)
    with pytest.raises(errors.NoValidHost):
        select(second, new(), flavor={**FLAVOR, 'vcpus': 3})
    assert not second.scheduler.health.counters().get('placement_claims_lost')
    assert units(second, name) == (1, 2, 1)


def test_a_host_that_others_filled_is_selected_no_more(
    cloud, service, started
):
    daemon, full, on = started
    service.take(new(), on, VCPU=8)
    free, other = add_host(cloud, service, VCPU=1, MEMORY_MB=600, DISK_GB=5)
    ready(daemon, free)
    vm = new()
    assert select(daemon, vm) == [free]
    assert service.held(vm) == {other: TAKEN}
    vms = [new(), new()]
    with pytest.raises(errors.NoValidHost):
        select(daemon, *vms)
    for one in vms:
        assert service.held(one) == {}
        assert claim_state(daemon.store, one) is None
    wait_until(lambda: stored_host(daemon.store, full).vcpus_used == 8)


def test_use_that_ends_after_the_rows_changed_is_noticed(
    cloud, service, start_claiming
):
    name, on = add_host(cloud, service)
    # Nothing else has the host read again.
    daemon = start_claiming(
        compute__placement_interval=3600.0, compute__service_down_time=3600.0
    )
    ready(daemon, name)
    follower = daemon.adapters[0].providers
    wait_until(lambda: not follower._again and not follower._touched)
    for number in range(10):
        vm, amount = new(), 2 + number % 2
        service.take(vm, on, VCPU=amount)
        changed_at = time.monotonic()
        cloud.update(
            cloud.cells[0], 'compute_nodes', {'host': name},
            vcpus_used=number + 1,
        )  # fmt: skip
        # Read since the row changed, while the use was there still.
        wait_until(
            lambda expected=amount: (
                stored_host(daemon.store, name).vcpus_used == expected
            ),
        )
        service.call('DELETE', f'/allocations/{vm}')
        # Unless this machine is so slow that it was read again before.
        if time.monotonic() - changed_at < providers._AGAIN_S:
            break
    else:
        pytest.fail('the machine is too slow')
    wait_until(lambda: stored_host(daemon.store, name).vcpus_used == 0)


def test_many_requests_at_once_share_calls(cloud, service, start_claiming):
    names = dict(add_host(cloud, service) for _ in range(4))
    daemon = start_claiming()
    ready(daemon, *names)
    vms = [new() for _ in range(32)]
    futures = [daemon.scheduler.select_destinations(request(vm)) for vm in vms]
    for future in futures:
        future.result(LIMIT_S)
    assert all(len(service.held(vm)) == 1 for vm in vms)
    assert sum(service.usages(on)['VCPU'] for on in names.values()) == 32
    with pytest.raises(errors.NoValidHost):
        select(daemon, new())


def test_claims_that_others_made_are_refused_and_that_they_ended_released(
    service, started
):
    daemon, _name, on = started
    vm = new()
    service.take(vm, on, VCPU=2)
    with pytest.raises(errors.Conflict):
        select(daemon, vm)
    assert service.held(vm) == {on: {'VCPU': 2}}
    assert claim_state(daemon.store, vm) is None
    kept, ended = new(), new()
    select(daemon, kept)
    select(daemon, ended)
    service.call('DELETE', f'/allocations/{ended}')
    with daemon.store.engine.begin() as conn:
        conn.exec_driver_sql('UPDATE stage_records SET made_at = 1')
    daemon.adapters[0].providers._claims.release_forgotten()
    assert claim_state(daemon.store, ended) is None
    assert claim_state(daemon.store, kept) == 'claimed'


def test_placement_that_is_away_is_an_error_and_comes_back(service, started):
    daemon, name, on = started
    vm, others = new(), new()
    service.take(others, on, VCPU=2)
    service.stop()
    try:
        # The first is tried there: what others made is not undone with it.
        for uuid in (others, vm):
            with pytest.raises(errors.PlacementUnavailable):
                select(daemon, uuid)
            assert claim_state(daemon.store, uuid) is None
        # Nor is there a candidate, but nothing else depends on the service.
        group = {'suffix': '1', 'resources': {'VCPU': 1}}
        with pytest.raises(errors.PlacementUnavailable):
            select(daemon, vm, resource_groups=[group])
        assert claim_state(daemon.store, vm) is None
        dry = daemon.scheduler.select_destinations(request(vm), claim=False)
        assert dry.result(LIMIT_S).placements[0].selected.host == name
    finally:
        service.start()
    assert select(daemon, vm) == [name]
    assert service.held(vm) == {on: TAKEN}
    daemon.adapters[0].providers.poll()
    assert service.held(others) == {on: {'VCPU': 2}}


def test_a_move_has_both_places_and_what_is_deleted_is_not_ours(
    cloud, service, started
):
    daemon, old, from_host = started
    vm = new()
    select(daemon, vm)
    cloud.add_instance(old, uuid=vm)
    wait_until(lambda: claim_state(daemon.store, vm) == 'confirmed')
    target, to_host = add_host(cloud, service)
    ready(daemon, target)
    moved = daemon.scheduler.select_destinations(request(vm), move=True)
    assert moved.result(LIMIT_S).placements[0].selected.host == target
    assert service.held(vm) == {from_host: TAKEN, to_host: TAKEN}
    daemon.scheduler.drop_moves([vm]).result(LIMIT_S)
    wait_until(lambda: service.held(vm) == {from_host: TAKEN})
    # The compute service takes back what a deleted instance has.
    cloud.update(
        cloud.cells[0], 'instances', {'uuid': vm}, deleted=1,
        updated_at=utc_now(),
    )  # fmt: skip
    wait_until(lambda: claim_state(daemon.store, vm) is None)
    daemon.adapters[0].providers.poll()
    assert service.held(vm) == {from_host: TAKEN}
