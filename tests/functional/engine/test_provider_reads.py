"""How many calls the capacity of all hosts takes.

The placement service is a stand-in that keeps every call.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.rigs.fake_placement import FakePlacement
from tests.support.placement_engines import engine, new, request
from tests.support.stores import import_inventory, stored_host
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.db
NODES = 20
CLASS = 'CUSTOM_BAREMETAL_X'


def total(store: Any, host: str) -> float:
    """Return how much a host has of the class."""
    return stored_host(store, host).resources[CLASS].total


def test_nodes_without_processors_are_read_with_one_call(make_store: Any):
    store = make_store('sqlite')
    with FakePlacement().running() as fake:
        cell, made = new()[0], [fake.add_provider(**{CLASS: 1})
                                for _ in range(NODES)]  # fmt: skip
        nodes = [
            {'host': f'host-{uuid}', 'hypervisor_hostname': uuid,
             'uuid': uuid, 'cell_uuid': cell,
             'resources': {CLASS: {'total': 5}}}
            for uuid in made
        ]  # fmt: skip
        import_inventory(store, {'hosts': nodes})
        with engine(store, fake):
            wait_until(lambda: total(store, f'host-{made[-1]}') == 1)
            asked = [path for _, path in list(fake.calls)]
    whole = f'/allocation_candidates?resources={CLASS}:1'
    assert asked.count(whole) == 1
    # Bounds alone are read one by one, little by little.
    assert not any(path.endswith('/usages') for path in asked)


def test_a_provider_without_vcpus_has_none_until_it_gets_some(make_store: Any):
    """A total of 0 is no figure that is not known yet."""
    store = make_store('sqlite')
    with FakePlacement().running() as fake:
        cell = new()[0]
        both = [
            fake.add_provider(PCPU=64, MEMORY_MB=65536, DISK_GB=1000),
            fake.add_provider(VCPU=2, MEMORY_MB=4096, DISK_GB=1000),
        ]
        nodes = [
            {'host': f'host-{uuid}', 'hypervisor_hostname': uuid,
             'uuid': uuid, 'cell_uuid': cell}
            for uuid in both
        ]  # fmt: skip
        import_inventory(store, {'hosts': nodes})
        with engine(store, fake) as running:

            def memory(at: int) -> int:
                return stored_host(store, f'host-{both[at]}').memory_mb

            wait_until(lambda: memory(0) and memory(1))
            (vm,) = new()
            answer = running.select_destinations(request(vm)).result(LIMIT_S)
            (placed,) = answer.placements
            assert placed.selected.uuid == both[1]
            assert not placed.alternates
            # No claim was lost on the other host.
            posted = [path for verb, path in fake.calls if verb != 'GET']
            assert len(posted) == 1


def test_dedicated_cpus_are_of_pcpu_once_a_host_offers_it(make_store: Any):
    """Placement says so when the request was about to be refused."""
    store = make_store('sqlite')
    with FakePlacement().running() as fake:
        made = fake.add_provider(MEMORY_MB=4096, DISK_GB=10)
        node = {'host': 'h', 'uuid': made, 'cell_uuid': new()[0]}
        import_inventory(store, {'hosts': [node]})
        with engine(store, fake) as running:
            wait_until(lambda: stored_host(store, 'h').memory_mb)
            fake.set_totals(made, PCPU=4, MEMORY_MB=4096, DISK_GB=10)
            (vm,) = new()
            pinned = {
                'vcpus': 2,
                'memory_mb': 512,
                'extra_specs': {'hw:cpu_policy': 'dedicated'},
            }
            asked = request(vm, flavor=pinned)
            running.select_destinations(asked).result(LIMIT_S)
            taken = {made: {'PCPU': 2, 'MEMORY_MB': 512}}
            assert fake.allocations[vm] == taken
