"""Claims of what a provider shares with the hosts of its aggregates."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service.compute.placement import claims
from scheduler_service.compute.placement.candidates import (
    SharedProviders,
    Tree,
)
from scheduler_service.compute.placement.claims import AllocationResult
from scheduler_service.engine.ports import Undone
from tests.support.engines import Message
from tests.support.placement_claims import (
    ROOM,
    TAKEN,
    add_host,
    new,
    ready,
    record_of,
    request,
    select,
    wanted,
)
from tests.support.placement_service import PlacementService
from tests.support.stores import claim_state, stored_host
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.slow
SHARES = 'MISC_SHARES_VIA_AGGREGATE'
DISKLESS = {name: n for name, n in ROOM.items() if name != 'DISK_GB'}
OWN = {name: n for name, n in TAKEN.items() if name != 'DISK_GB'}


def put_together(service: PlacementService, *uuids: str) -> None:
    """Put providers into an aggregate of their own."""
    aggregate = new()
    for uuid in uuids:
        service.call(
            'PUT',
            f'/resource_providers/{uuid}/aggregates',
            {
                'resource_provider_generation': service.generation(uuid),
                'aggregates': [aggregate],
            },
        )


def add_storage(service: PlacementService, size: int, *hosts: str) -> str:
    """Add storage that hosts share; return its uuid."""
    made = new()
    service.add_provider(made, made, [SHARES], DISK_GB=size)
    put_together(service, made, *hosts)
    return made


@pytest.fixture
def shared(placement_client: Any) -> SharedProviders:
    """What is shared, read each time."""
    return SharedProviders(placement_client, 0.0)


def test_hosts_without_a_disk_have_the_shared_one(
    service, placement_client, shared
):
    bare, full, other = new(), new(), new()
    service.add_provider(bare, bare, **DISKLESS)
    service.add_provider(full, full, **ROOM)
    service.add_provider(other, other, **DISKLESS)
    storage = add_storage(service, 500, bare, full)
    service.take(new(), storage, DISK_GB=7)
    shared.follow()
    found = shared.add_to(placement_client.provider(bare))
    assert (found.capacity['DISK_GB'], found.used['DISK_GB']) == (500, 7)
    for uuid in (full, other):
        alone = placement_client.provider(uuid)
        assert shared.add_to(alone) is alone
        assert shared.tree(uuid, TAKEN) is None
    assert shared.tree(bare, TAKEN) == Tree(
        {bare: OWN, storage: {'DISK_GB': 1}}, {'': [bare, storage]}
    )
    assert shared.tree(bare, OWN) is None


def test_of_several_the_one_with_most_room_is_used(service, shared):
    host = new()
    service.add_provider(host, host, **DISKLESS)
    storages = [new() for _ in range(2)]
    for storage in storages:
        service.add_provider(storage, storage, [SHARES], DISK_GB=100)
    put_together(service, host, *storages)
    for most, least in (storages, storages[::-1]):
        service.take(new(), least, DISK_GB=50 if least == storages[1] else 90)
        shared.follow()
        assert most in shared.tree(host, TAKEN).allocations


def test_a_move_between_hosts_that_share_takes_of_it_twice(
    service, placement_client
):
    first, second = new(), new()
    for host in (first, second):
        service.add_provider(host, host, **DISKLESS)
    storage = add_storage(service, 500, first, second)

    def tree(host: str) -> Tree:
        return Tree({host: OWN, storage: {'DISK_GB': 1}}, {'': [host]})

    def undo(host: str) -> Undone:
        given = tree(host).allocations
        left = record_of(one.consumer, host, given)
        return claims.undo(placement_client, left, set())

    one = wanted(first, tree=tree(first))
    assert (
        claims.make(placement_client, [one], set(), {})[one.consumer]
        is AllocationResult.MADE
    )
    moved = wanted(second, one.consumer, keep_existing=True, tree=tree(second))
    assert (
        claims.make(placement_client, [moved], set(), {})[one.consumer]
        is AllocationResult.MADE
    )
    both = {first: OWN, second: OWN, storage: {'DISK_GB': 2}}
    assert service.held(one.consumer) == both
    # A second delivery takes nothing more.
    assert claims.make(placement_client, [moved], set(), {}) == {
        one.consumer: AllocationResult.ALREADY_MADE
    }
    assert service.held(one.consumer) == both
    assert undo(second) is Undone.DONE
    assert service.held(one.consumer) == tree(first).allocations
    assert undo(first) is Undone.DONE
    assert service.held(one.consumer) == {}


def test_a_claim_takes_disk_of_the_shared_storage(
    cloud, service, start_claiming
):
    made = [add_host(cloud, service, **DISKLESS) for _ in range(2)]
    storage = add_storage(service, 3, *(uuid for _, uuid in made))
    daemon = start_claiming(compute__placement_interval=2.0)
    ready(daemon, *(name for name, _ in made))
    hosts = dict(made)
    for name in hosts:
        wait_until(lambda of=name: stored_host(daemon.store, of).local_gb)
    vm = new()
    message = Message('select_destinations', (request(vm),))
    first = message.run(daemon.scheduler)
    (placed,) = first['placements']
    selected, alternate = placed['selected'], placed['alternates'][0]
    own, other = hosts[selected['host']], hosts[alternate['host']]
    claimed = {own: OWN, storage: {'DISK_GB': 1}}
    assert service.held(vm) == claimed
    assert selected['allocation']['allocations'] == {
        uuid: {'resources': amounts} for uuid, amounts in claimed.items()
    }
    assert alternate['allocation']['allocations'].keys() == {other, storage}
    assert message.run(daemon.scheduler) == first
    # As if the daemon had died between the store and placement.
    service.call('DELETE', f'/allocations/{vm}')
    assert message.run(daemon.scheduler) == first
    assert service.held(vm) == claimed
    daemon.scheduler.release([vm]).result(LIMIT_S)
    wait_until(lambda: service.held(vm) == {})
    # What one host takes is not there for the other.
    vm = new()
    select(daemon, vm)
    vms = [new() for _ in range(2)]
    for each in vms:
        select(daemon, each)
    last = new()
    with pytest.raises(errors.NoValidHost):
        select(daemon, last)
    assert claim_state(daemon.store, last) is None
    assert service.usages(storage) == {'DISK_GB': 3}
    daemon.scheduler.release([vm]).result(LIMIT_S)
    wait_until(lambda: service.held(vm) == {})
    assert service.usages(storage) == {'DISK_GB': 2}


def test_a_shared_class_besides_the_usual_ones_is_claimed(
    cloud, service, start_claiming
):
    name, root = add_host(cloud, service)
    licenses = new()
    service.add_provider(licenses, licenses, [SHARES], CUSTOM_LICENSE=2)
    put_together(service, licenses, root)
    daemon = start_claiming(compute__placement_interval=2.0)
    ready(daemon, name)
    wait_until(
        lambda: 'CUSTOM_LICENSE' in stored_host(daemon.store, name).resources,
    )
    vm = new()
    select(daemon, vm, amounts={**TAKEN, 'CUSTOM_LICENSE': 1})
    assert service.held(vm) == {root: TAKEN, licenses: {'CUSTOM_LICENSE': 1}}
    with pytest.raises(errors.NoValidHost):
        select(daemon, new(), amounts={**TAKEN, 'CUSTOM_LICENSE': 2})


def test_a_group_is_claimed_beside_the_shared_disk(
    cloud, service, start_claiming
):
    name, root = add_host(cloud, service, **DISKLESS)
    child = new()
    service.add_provider(child, child, (), root, CUSTOM_BANDWIDTH=100)
    storage = add_storage(service, 10, root)
    daemon = start_claiming(compute__placement_interval=2.0)
    ready(daemon, name)
    wait_until(lambda: stored_host(daemon.store, name).local_gb)
    vm = new()
    group = {'suffix': 'port-1', 'resources': {'CUSTOM_BANDWIDTH': 60}}
    future = daemon.scheduler.select_destinations(
        request(vm, resource_groups=[group])
    )
    (placed,) = future.result(LIMIT_S).placements
    assert service.held(vm) == {
        root: OWN, child: {'CUSTOM_BANDWIDTH': 60}, storage: {'DISK_GB': 1},
    }  # fmt: skip
    mappings = placed.selected.allocation['mappings']
    assert mappings['port-1'] == [child]
    assert {*mappings['']} == {root, storage}
    daemon.scheduler.release([vm]).result(LIMIT_S)
    wait_until(lambda: service.held(vm) == {})
