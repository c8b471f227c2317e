"""Claims of what providers below a host's own have."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_service import errors
from tests.support.engines import Message
from tests.support.placement_claims import (
    FLAVOR,
    TAKEN,
    add_host,
    new,
    ready,
    request,
    select,
)
from tests.support.placement_service import PlacementService
from tests.support.stores import claim_state, stored_host
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.slow
BANDWIDTH = 'CUSTOM_BANDWIDTH'


def add_child(
    service: PlacementService, parent: str, *traits: str, **amounts: Any
) -> str:
    """Add a provider below another; return its uuid."""
    made = new()
    service.add_provider(made, made, traits, parent, **amounts)
    return made


def port(trait: str = '', amount: int = 100) -> dict[str, Any]:
    """Return the group that a port with a minimum bandwidth asks for."""
    return {
        'suffix': 'port-1',
        'resources': {BANDWIDTH: amount},
        'required': [trait] if trait else [],
    }


def knows(daemon: Any, host: str, resource: str) -> None:
    """Wait until the store has a resource class of a host."""
    ready(daemon, host)
    wait_until(lambda: resource in stored_host(daemon.store, host).resources)


def test_what_providers_below_have_counts_for_the_host(
    service, placement_client
):
    root = new()
    service.add_provider(root, root, VCPU=4, CUSTOM_A=1)
    first = add_child(service, root, VCPU=2, CUSTOM_A=2, VGPU=3)
    add_child(service, first, VGPU=4)
    service.take(new(), first, VGPU=2)
    found = placement_client.provider(root)
    # A processor has to be the host's own.
    assert found.capacity == {'VCPU': 4, 'CUSTOM_A': 3, 'VGPU': 7}
    assert found.used == {'VCPU': 0, 'CUSTOM_A': 0, 'VGPU': 2}
    assert placement_client.providers()[root] == found._replace(units=None)


def test_a_group_is_claimed_of_the_provider_that_fits(
    cloud, service, start_claiming
):
    name, root = add_host(cloud, service)
    add_child(service, root, 'CUSTOM_NET_A', CUSTOM_BANDWIDTH=1000)
    other = add_child(service, root, 'CUSTOM_NET_B', CUSTOM_BANDWIDTH=150)
    daemon = start_claiming()
    knows(daemon, name, BANDWIDTH)
    vm = new()
    future = daemon.scheduler.select_destinations(
        request(vm, resource_groups=[port('CUSTOM_NET_B')])
    )
    (placed,) = future.result(LIMIT_S).placements
    assert placed.selected.allocation == {
        'allocations': {
            root: {'resources': TAKEN},
            other: {'resources': {BANDWIDTH: 100}},
        },
        'mappings': {'': [root], 'port-1': [other]},
    }
    assert service.held(vm) == {root: TAKEN, other: {BANDWIDTH: 100}}
    # There is more of it, but not in one network.
    second = new()
    with pytest.raises(errors.NoValidHost):
        select(daemon, second, resource_groups=[port('CUSTOM_NET_B')])
    assert claim_state(daemon.store, second) is None
    daemon.scheduler.release([vm]).result(LIMIT_S)
    wait_until(lambda: service.held(vm) == {})


def test_instances_get_providers_with_room_and_again_the_same(
    cloud, service, start_claiming
):
    name, root = add_host(cloud, service)
    children = {add_child(service, root, VGPU=1) for _ in range(2)}
    daemon = start_claiming()
    knows(daemon, name, 'VGPU')
    vm = new()
    message = Message(
        'select_destinations',
        (request(vm, resource_groups=[{'suffix': '1',
                                       'resources': {'VGPU': 1}}]),),
    )  # fmt: skip
    first = message.run(daemon.scheduler)
    kept = service.held(vm)
    assert len(kept.keys() & children) == 1
    assert message.run(daemon.scheduler) == first
    # As if the daemon had died between the store and placement.
    service.call('DELETE', f'/allocations/{vm}')
    assert message.run(daemon.scheduler) == first
    assert service.held(vm) == kept
    daemon.scheduler.release([vm]).result(LIMIT_S)
    wait_until(lambda: service.held(vm) == {})
    flavor = {**FLAVOR, 'extra_specs': {'resources:VGPU': '1'}}
    vms = [new(), new()]
    assert select(daemon, *vms, flavor=flavor) == [name, name]
    held = [service.held(one) for one in vms]
    assert {*held[0], *held[1]} == {root, *children}
    with pytest.raises(errors.NoValidHost):
        select(daemon, new(), flavor=flavor)


def test_another_host_is_selected_where_the_group_does_not_fit(
    cloud, service, start_claiming
):
    names = {}
    for trait in ('CUSTOM_NET_C', 'CUSTOM_NET_D', 'CUSTOM_NET_D'):
        name, root = add_host(cloud, service)
        add_child(service, root, trait, CUSTOM_BANDWIDTH=1000)
        names[name] = trait
    daemon = start_claiming()
    for name in names:
        knows(daemon, name, BANDWIDTH)
    future = daemon.scheduler.select_destinations(
        request(new(), resource_groups=[port('CUSTOM_NET_C')])
    )
    (placed,) = future.result(LIMIT_S).placements
    assert names[placed.selected.host] == 'CUSTOM_NET_C'
    # Alternates are hosts on which it would fit, too.
    assert placed.alternates == []
    future = daemon.scheduler.select_destinations(
        request(new(), resource_groups=[port('CUSTOM_NET_D')])
    )
    (placed,) = future.result(LIMIT_S).placements
    others = [placed.selected, *placed.alternates]
    assert [names[one.host] for one in others] == ['CUSTOM_NET_D'] * 2
    assert all(len(one.allocation['allocations']) == 2 for one in others)


def test_a_provider_below_has_what_is_in_no_group(
    cloud, service, start_claiming, placement_client
):
    name, root = add_host(cloud, service)
    add_child(service, root, 'CUSTOM_V11', VGPU=2)
    other = add_child(service, root, 'CUSTOM_V12', VGPU=2)
    encrypting = add_child(
        service, root, 'HW_CPU_X86_AMD_SEV', MEM_ENCRYPTION_CONTEXT=1
    )
    daemon = start_claiming()
    knows(daemon, name, 'VGPU')
    own = {'trait:CUSTOM_V12': 'required'}
    flavor = {**FLAVOR, 'extra_specs': {'resources:VGPU': '1', **own}}
    vm = new()
    assert select(daemon, vm, flavor=flavor) == [name]
    assert service.held(vm) == {root: TAKEN, other: {'VGPU': 1}}
    # Where the host gives all, it has to have the trait.
    with pytest.raises(errors.NoValidHost):
        select(daemon, new(), flavor={**FLAVOR, 'extra_specs': own})
    # Since the service's release 2025.2 the trait of memory encryption is not
    # the host's.
    vm = new()
    fields = {
        'amounts': {**TAKEN, 'MEM_ENCRYPTION_CONTEXT': 1},
        'traits': {'HW_CPU_X86_AMD_SEV': 'required'},
    }
    assert select(daemon, vm, **fields) == [name]
    assert service.held(vm) == {
        root: TAKEN, encrypting: {'MEM_ENCRYPTION_CONTEXT': 1},
    }  # fmt: skip
    fields['traits'] = {'HW_CPU_X86_AMD_SEV_SNP': 'required'}
    with pytest.raises(errors.NoValidHost):
        select(daemon, new(), **fields)
    # A class that the service does not know is on no host.
    found = placement_client.allocation_candidates('resources=CUSTOM_NO:1')
    assert found['allocation_requests'] == []
    group = {'suffix': '1', 'resources': {'CUSTOM_NO': 1}}
    with pytest.raises(errors.NoValidHost):
        select(daemon, new(), resource_groups=[group])
