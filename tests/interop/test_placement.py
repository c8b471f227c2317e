"""Capacity from the placement service, and claims in it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service.cmd.daemon import Daemon
from scheduler_service.conf import placement as placement_options
from scheduler_service.mirror import providers
from scheduler_service.model import documents
from scheduler_service.placement import claims
from scheduler_service.placement.claims import Outcome, Wanted
from scheduler_service.placement.client import PlacementClient
from tests.support.engines import Message
from tests.support.nova_databases import NovaDatabases, utc_now
from tests.support.placement_service import (
    PlacementService,
    daemon_options,
)
from tests.support.stores import claim_state, stored_host
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow
FLAVOR = {'flavorid': 'f', 'vcpus': 1, 'memory_mb': 512, 'root_gb': 1}
TAKEN = {'VCPU': 1, 'MEMORY_MB': 512, 'DISK_GB': 1}
ROOM = {'VCPU': 8, 'MEMORY_MB': 8192, 'DISK_GB': 100}


@pytest.fixture
def cloud(
    nova_base: NovaDatabases, service: PlacementService
) -> NovaDatabases:
    """Databases of a cloud without hosts; placement has those of before."""
    nova_base.reset()
    return nova_base


@pytest.fixture
def client(service: PlacementService) -> PlacementClient:
    """A client with the daemon's options."""
    return PlacementClient(
        placement_options.new_adapter(daemon_options(service))
    )


@pytest.fixture
def start(
    cloud: NovaDatabases, service: PlacementService, make_store: Any
) -> Iterator[Any]:
    """Give a function that starts a daemon; it has ``store``."""
    running: list[Daemon] = []

    def make(**more: Any) -> Daemon:
        store = make_store('postgresql') if not running else running[0].store
        conf = daemon_options(
            service,
            database__connection=store.engine.url.render_as_string(
                hide_password=False
            ),
            compute__api_database=cloud.api,
            compute__use_placement=True,
            **more,
        )
        daemon = Daemon(conf, f'inproc://{uuid.uuid4().hex}/')
        daemon.start()
        running.append(daemon)
        return daemon

    yield make
    for daemon in running:
        daemon.stop()


def add_host(
    cloud: NovaDatabases, service: PlacementService, **amounts: Any
) -> tuple[str, str]:
    """Add a host with its provider; return its name and uuid."""
    name = f'h{uuid.uuid4().hex[:8]}'
    made = cloud.add_host(name)
    service.add_provider(made, name, **(amounts or ROOM))
    return name, made


def ready(daemon: Daemon, *names: str) -> None:
    """Wait until hosts have the capacity of their providers."""
    wait_until(
        lambda: all(
            (one := stored_host(daemon.store, name)) and one.vcpus
            for name in names
        )
    )


def request(*uuids: str, **document: Any) -> Any:
    """Return a request for instances."""
    return documents.request(
        {
            'flavor': FLAVOR,
            'instance_uuids': list(uuids),
            'num_instances': len(uuids),
            'project_id': 'p1',
            'user_id': 'u1',
            **document,
        }
    )


def select(daemon: Daemon, *uuids: str, **document: Any) -> list[str]:
    """Place instances; return their hosts."""
    future = daemon.scheduler.select_destinations(request(*uuids, **document))
    return [one.selected.host for one in future.result(20).placements]


def new() -> str:
    """Return a new uuid."""
    return str(uuid.uuid4())


def provider(service: PlacementService, **amounts: Any) -> str:
    """Add a provider; return its uuid."""
    made = new()
    service.add_provider(made, made, **(amounts or ROOM))
    return made


def wanted(on: str, consumer: str = '', **more: Any) -> Wanted:
    """Return allocations that are wanted."""
    return Wanted(consumer or new(), on, TAKEN, 'p', 'u', **more)


# The client and its claims.


def test_a_provider_as_the_service_has_it(service, client):
    client.check()
    made = new()
    service.add_provider(
        made, made, ['HW_CPU_X86_AVX2'], MEMORY_MB=100, DISK_GB=10,
        VCPU={'total': 10, 'reserved': 2, 'allocation_ratio': 4.0},
    )  # fmt: skip
    service.take(new(), made, VCPU=3)
    one = client.provider(made)
    assert one.capacity == {'VCPU': 32, 'MEMORY_MB': 100, 'DISK_GB': 10}
    assert one.used['VCPU'] == 3
    assert one.traits == ['HW_CPU_X86_AVX2']
    assert client.providers()[made] == one
    assert made in client.provider_uuids()
    assert client.provider(new()) is None


def test_many_claims_are_made_in_one_call(service, client):
    on = [provider(service) for _ in range(3)]
    batch = [wanted(on[number % 3]) for number in range(9)]
    found = claims.make(client, batch)
    assert {*found.values()} == {Outcome.MADE}
    assert service.held(batch[0].consumer) == {on[0]: TAKEN}
    assert service.usages(on[0])['VCPU'] == 3


def test_a_misfit_does_not_keep_others_from_room(service, client):
    wide, narrow = provider(service), provider(service, VCPU=1, MEMORY_MB=9)
    batch = [wanted(wide) for _ in range(6)]
    batch.insert(3, wanted(narrow))
    found = claims.make(client, batch)
    assert found.pop(batch[3].consumer) is Outcome.NO_ROOM
    assert {*found.values()} == {Outcome.MADE}
    assert service.held(batch[3].consumer) == {}


def test_a_provider_that_is_gone_has_no_room(client):
    one = wanted(new())
    assert claims.make(client, [one]) == {one.consumer: Outcome.NO_ROOM}


def test_own_allocations_are_recognised_and_others_are_not(service, client):
    first, second = provider(service), provider(service)
    one = wanted(first)
    assert claims.make(client, [one])[one.consumer] is Outcome.MADE
    assert claims.make(client, [one])[one.consumer] is Outcome.THERE
    other = wanted(second, one.consumer)
    assert claims.make(client, [other])[one.consumer] is Outcome.CONFLICT
    assert service.held(one.consumer) == {first: TAKEN}


def test_a_move_keeps_what_the_instance_has(service, client):
    first, second = provider(service), provider(service)
    one = wanted(first)
    claims.make(client, [one])
    moved = wanted(second, one.consumer, beside=True)
    assert claims.make(client, [moved])[one.consumer] is Outcome.MADE
    assert service.held(one.consumer) == {first: TAKEN, second: TAKEN}
    assert claims.undo(client, one.consumer, second, TAKEN)
    assert service.held(one.consumer) == {first: TAKEN}
    assert not claims.undo(client, one.consumer, first, {'VCPU': 1})
    assert claims.undo(client, one.consumer, first, TAKEN)
    assert service.held(one.consumer) == {}
    assert not claims.undo(client, one.consumer, first, TAKEN)


def test_claims_of_several_daemons_at_once_are_all_made(service, client):
    on = provider(service, VCPU=100, MEMORY_MB=100_000, DISK_GB=100)
    batches = [[wanted(on) for _ in range(4)] for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda b: claims.make(client, b), batches))
    made = [
        uuid
        for one in found
        for uuid, outcome in one.items()
        if outcome is Outcome.MADE
    ]
    # A few may give up after several tries; none is half made.
    assert service.usages(on)['VCPU'] == len(made) >= 8


def test_a_service_that_is_away_is_an_error(service):
    conf = daemon_options(service)
    conf.set_override('endpoint', 'http://127.0.0.1:1', 'placement')
    away = PlacementClient(placement_options.new_adapter(conf))
    with pytest.raises(errors.PlacementUnavailable):
        away.check()
    with pytest.raises(errors.PlacementUnavailable):
        claims.make(away, [wanted(new())])


# Daemons.


def test_claims_are_in_placement_and_capacity_from_it(cloud, service, start):
    name, on = add_host(
        cloud, service, VCPU={'total': 8, 'reserved': 6},
        MEMORY_MB=8192, DISK_GB=100, CUSTOM_FPGA=1,
    )  # fmt: skip
    daemon = start()
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
    follower = daemon.mirroring.providers

    def counts_once() -> bool:
        follower.touch([name])
        follower.poll()
        return stored_host(daemon.store, name).vcpus_used == 2

    wait_until(counts_once)


def test_a_host_that_comes_back_has_its_capacity_again(cloud, service, start):
    name, _ = add_host(cloud, service)
    daemon = start()
    ready(daemon, name)
    cloud.delete(cloud.api, 'host_mappings', host=name)
    wait_until(lambda: stored_host(daemon.store, name) is None)
    cloud.insert(cloud.api, 'host_mappings', host=name, cell_id=2)
    ready(daemon, name)
    assert select(daemon, new()) == [name]


def test_release_and_delivery_again(cloud, service, start):
    name, on = add_host(cloud, service)
    daemon = start()
    ready(daemon, name)
    vm = new()
    message = Message('select_destinations', (request(vm),))
    first = message.run(daemon.scheduler)
    assert message.run(daemon.scheduler) == first
    assert service.held(vm) == {on: TAKEN}
    daemon.scheduler.release([vm]).result(20)
    wait_until(lambda: service.held(vm) == {})


def test_allocations_lost_in_a_crash_are_made_on_redelivery(
    cloud, service, start
):
    name, on = add_host(cloud, service)
    daemon = start()
    ready(daemon, name)
    vm = new()
    message = Message('select_destinations', (request(vm),))
    first = message.run(daemon.scheduler)
    # As if the daemon had died between the store and placement.
    service.call('DELETE', f'/allocations/{vm}')
    assert message.run(daemon.scheduler) == first
    assert service.held(vm) == {on: TAKEN}


def test_a_host_that_others_filled_is_selected_no_more(cloud, service, start):
    full, on = add_host(cloud, service)
    daemon = start()
    ready(daemon, full)
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
    cloud, service, start
):
    name, on = add_host(cloud, service)
    # Nothing else has the host read again.
    daemon = start(
        compute__placement_interval=3600.0, compute__service_down_time=3600.0
    )
    ready(daemon, name)
    follower = daemon.mirroring.providers
    wait_until(lambda: not follower._again and not follower._touched, 120)
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
            60,
        )
        service.call('DELETE', f'/allocations/{vm}')
        # Unless this machine is so slow that it was read again before.
        if time.monotonic() - changed_at < providers._AGAIN_S:
            break
    else:
        pytest.fail('the machine is too slow')
    wait_until(lambda: stored_host(daemon.store, name).vcpus_used == 0, 60)


def test_many_requests_at_once_share_calls(cloud, service, start):
    names = dict(add_host(cloud, service) for _ in range(4))
    daemon = start()
    ready(daemon, *names)
    vms = [new() for _ in range(32)]
    futures = [daemon.scheduler.select_destinations(request(vm)) for vm in vms]
    for future in futures:
        future.result(30)
    assert all(len(service.held(vm)) == 1 for vm in vms)
    assert sum(service.usages(on)['VCPU'] for on in names.values()) == 32
    with pytest.raises(errors.NoValidHost):
        select(daemon, new())


def test_what_is_not_supported_is_refused_by_name(cloud, service, start):
    name, _ = add_host(cloud, service)
    daemon = start()
    ready(daemon, name)
    for key, value in (
        ('resources1:VGPU', '1'),
        ('group_policy', 'none'),
        ('hw:cpu_policy', 'dedicated'),
        ('accel:device_profile', 'x'),
    ):
        with pytest.raises(errors.InvalidRequest, match=key):
            select(
                daemon, new(), flavor={**FLAVOR, 'extra_specs': {key: value}}
            )


def test_instances_of_others_are_refused(cloud, service, start):
    name, on = add_host(cloud, service)
    daemon = start()
    ready(daemon, name)
    vm = new()
    service.take(vm, on, VCPU=2)
    with pytest.raises(errors.Conflict):
        select(daemon, vm)
    assert service.held(vm) == {on: {'VCPU': 2}}
    assert claim_state(daemon.store, vm) is None


def test_deleted_instances_are_the_compute_services(cloud, service, start):
    name, on = add_host(cloud, service)
    daemon = start()
    ready(daemon, name)
    vm = new()
    select(daemon, vm)
    cloud.add_instance(name, uuid=vm)
    wait_until(lambda: claim_state(daemon.store, vm) == 'confirmed')
    cloud.update(
        cloud.cells[0], 'instances', {'uuid': vm}, deleted=1,
        updated_at=utc_now(),
    )  # fmt: skip
    wait_until(lambda: claim_state(daemon.store, vm) is None)
    daemon.mirroring.providers.poll()
    assert service.held(vm) == {on: TAKEN}


def test_placement_that_is_away_is_an_error_and_comes_back(
    cloud, service, start
):
    name, on = add_host(cloud, service)
    daemon = start()
    ready(daemon, name)
    service.stop()
    try:
        vm = new()
        with pytest.raises(errors.PlacementUnavailable):
            select(daemon, vm)
        assert claim_state(daemon.store, vm) is None
    finally:
        service.start()
    assert select(daemon, vm) == [name]
    assert service.held(vm) == {on: TAKEN}


def test_a_move_has_both_places_until_it_is_dropped(cloud, service, start):
    old, from_host = add_host(cloud, service)
    daemon = start()
    ready(daemon, old)
    vm = new()
    select(daemon, vm)
    cloud.add_instance(old, uuid=vm)
    wait_until(lambda: claim_state(daemon.store, vm) == 'confirmed')
    target, to_host = add_host(cloud, service)
    ready(daemon, target)
    moved = daemon.scheduler.select_destinations(request(vm), move=True)
    assert moved.result(20).placements[0].selected.host == target
    assert service.held(vm) == {from_host: TAKEN, to_host: TAKEN}
    daemon.scheduler.drop_moves([vm]).result(20)
    wait_until(lambda: service.held(vm) == {from_host: TAKEN})


def test_a_claim_that_the_compute_service_ended_is_released(
    cloud, service, start
):
    name, _ = add_host(cloud, service)
    daemon = start()
    ready(daemon, name)
    kept, ended = new(), new()
    select(daemon, kept)
    select(daemon, ended)
    service.call('DELETE', f'/allocations/{ended}')
    with daemon.store.engine.begin() as conn:
        conn.exec_driver_sql('UPDATE placement_claims SET made_at = 1')
    daemon.mirroring.providers._release_forgotten()
    assert claim_state(daemon.store, ended) is None
    assert claim_state(daemon.store, kept) == 'claimed'


def test_what_others_made_stays_where_placement_was_away(
    cloud, service, start
):
    name, on = add_host(cloud, service)
    daemon = start()
    ready(daemon, name)
    vm = new()
    service.take(vm, on, VCPU=2)
    service.stop()
    try:
        with pytest.raises(errors.PlacementUnavailable):
            select(daemon, vm)
    finally:
        service.start()
    daemon.mirroring.providers.poll()
    assert service.held(vm) == {on: {'VCPU': 2}}
