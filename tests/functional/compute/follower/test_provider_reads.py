"""How the placement service is read where one host has many nodes.

The service is a stand-in that counts: what matters here is what is asked.
"""

import threading
import uuid
from collections import Counter
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service.compute.follower.providers import ProviderFollower
from scheduler_service.compute.placement import options as placement_options
from scheduler_service.compute.placement.candidates import SharedProviders
from scheduler_service.compute.placement.client import PlacementClient
from scheduler_service.engine.health import Health
from scheduler_service.store import schema
from tests.rigs.fake_placement import FakePlacement
from tests.support.placement_service import daemon_options
from tests.support.stores import (
    import_inventory,
    load_snapshot,
    stored_host,
)
from tests.support.waiting import LIMIT_S, wait_until

METAL = 'CUSTOM_METAL'
NODES, FULL = 300, 100


@pytest.fixture
def metal(make_store: Any, fake: FakePlacement) -> Any:
    """A store with a service host of many nodes; some of them are taken."""
    store = make_store('sqlite')
    nodes = [fake.add_provider(**{METAL: 1}) for _ in range(NODES)]
    for node in nodes[:FULL]:
        fake.allocations[str(uuid.uuid4())] = {node: {METAL: 1}}
    import_inventory(store, {'hosts': [
        {'host': 'metal', 'hypervisor_hostname': node, 'uuid': node,
         'vcpus': 0, 'memory_mb': 4096, 'ram_allocation_ratio': 1.0,
         'resources': {METAL: {'total': 1}}}
        for node in nodes
    ]})  # fmt: skip
    with store.engine.begin() as conn:
        conn.execute(sa.update(schema.hosts).values(cell_uuid='c'))
    return store, nodes


def follower(store: Any, fake: FakePlacement) -> ProviderFollower:
    """Return what follows providers, of which no thread runs."""
    client = PlacementClient(
        placement_options.new_adapter(daemon_options(fake))
    )
    shared = SharedProviders(client, 60.0)
    return ProviderFollower(store, client, Health(), 0.0, lambda: True, shared)


def test_nodes_are_read_once_where_one_host_has_many(metal, fake):
    store, nodes = metal
    following = follower(store, fake)
    for _ in range(2):
        fake.calls.clear()
        following.poll()
        read = Counter(
            path.split('/')[2]
            for _, path in fake.calls
            if path.endswith('/usages')
        )
        assert read == Counter(nodes[:FULL])
        # And few calls for all others: limits are read a few at a time.
        assert len(fake.calls) <= 4 * FULL + 10
    with store.reading() as conn:
        used = conn.execute(
            sa.select(sa.func.sum(schema.inventories.c.used)).where(
                schema.inventories.c.resource_class == METAL
            )
        ).scalar()
    assert used == FULL


def test_a_tree_is_read_at_once(make_store, fake, monkeypatch):
    """Calls that wait for each other are made at the same time."""
    root = fake.add_provider(VCPU=8, MEMORY_MB=4096)
    below = [fake.add_provider(root, VGPU=n) for n in range(1, 7)]
    for child in below:
        fake.traits[child] = {f'CUSTOM_{child[:8].upper()}'}
    fake.allocations[str(uuid.uuid4())] = {below[5]: {'VGPU': 2}}
    read, together = fake.read, threading.Barrier(7)

    def waiting(path: str, query: Any) -> Any:
        if path.startswith('/resource_providers/') and len(fake.calls) <= 8:
            together.wait(LIMIT_S)
        return read(path, query)

    monkeypatch.setattr(fake, 'read', waiting)
    client = follower(make_store('sqlite'), fake)._client
    found = client.provider(root)
    assert found.capacity == {'VCPU': 8, 'MEMORY_MB': 4096, 'VGPU': 21}
    assert found.used == {'VCPU': 0, 'MEMORY_MB': 0, 'VGPU': 2}
    assert {*found.child_traits} == set.union(*fake.traits.values())
    assert len(fake.calls) <= 22
    assert client.provider(str(uuid.uuid4())) is None


def followed(store: Any, fake: Any, count: int) -> tuple[Any, dict[str, str]]:
    """Follow providers that are read by request alone: host -> provider."""
    nodes = {
        f'h{number}': fake.add_provider(VCPU=8, MEMORY_MB=4096)
        for number in range(count)
    }
    import_inventory(store, {'hosts': [
        {'host': host, 'uuid': node} for host, node in nodes.items()
    ]})  # fmt: skip
    with store.engine.begin() as conn:
        conn.execute(sa.update(schema.hosts).values(cell_uuid='c'))
    following = follower(store, fake)
    following.poll()
    following.interval = 3600.0
    return following, nodes


def test_a_refusal_waits_for_no_host_that_changed(
    make_store, fake, monkeypatch
):
    following, nodes = followed(make_store('sqlite'), fake, 30)
    read, held, go = fake.read, threading.Event(), threading.Event()

    def waiting(path: str, query: Any) -> Any:
        if path.endswith('/usages') and not held.is_set():
            held.set()
            assert go.wait(LIMIT_S)
        return read(path, query)

    fake.calls.clear()
    monkeypatch.setattr(fake, 'read', waiting)
    following.touch([host for host in nodes if host != 'h7'])
    following.start()
    try:
        assert held.wait(LIMIT_S)
        waits = threading.Thread(target=following.catch_up, args=[['h7']])
        waits.start()
        wait_until(lambda: following._awaited)
        go.set()
        waits.join(LIMIT_S)
        wait_until(lambda: len(read_in(fake)) >= 30)
    finally:
        following.stop(LIMIT_S)
    assert read_in(fake).index(nodes['h7']) <= 2


def test_what_a_refusal_read_is_not_replaced_by_an_earlier_read(
    make_store, fake, monkeypatch
):
    store = make_store('sqlite')
    following, nodes = followed(store, fake, 4)
    hosts = {node: host for host, node in nodes.items()}
    read, waits = fake.read, []

    def changing(path: str, query: Any) -> Any:
        if path.endswith('/usages') and len(read_in(fake)) == 2 and not waits:
            (first, _) = read_in(fake)
            fake.set_totals(first, VCPU=8, MEMORY_MB=8192)
            waits.append(threading.Thread(
                target=following.catch_up, args=[[hosts[first]]]
            ))  # fmt: skip
            waits[0].start()
            wait_until(lambda: following._awaited)
        return read(path, query)

    fake.calls.clear()
    monkeypatch.setattr(fake, 'read', changing)
    following.touch([*hosts.values()])
    following.poll()
    waits[0].join(LIMIT_S)
    first = read_in(fake)[0]
    assert stored_host(store, hosts[first]).memory_mb == 8192


def read_in(fake: FakePlacement) -> list[str]:
    """Return the providers that were read, in their order."""
    return [
        path.split('/')[2]
        for _, path in fake.calls
        if path.endswith('/usages')
    ]


def test_vcpus_are_offered_once_a_provider_has_some(make_store, fake):
    store = make_store('sqlite')
    made = fake.add_provider(PCPU=8, MEMORY_MB=4096)
    import_inventory(store, {'hosts': [
        {'host': 'h', 'uuid': made, 'cell_uuid': str(uuid.uuid4())}
    ]})  # fmt: skip
    following = follower(store, fake)

    def least() -> int:
        following.poll()
        columns = load_snapshot(store).hosts.resources['VCPU']
        return int(columns.min_unit[0])

    assert least() > 1_000_000
    # The call that reads all providers at once says nothing of bounds.
    fake.set_totals(made, VCPU=8, MEMORY_MB=4096)
    assert least() == 1
