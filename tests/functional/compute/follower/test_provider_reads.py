"""How the placement service is read where one host has many nodes.

The service is a stand-in that counts: what matters here is what is asked.
"""

import uuid
from collections import Counter
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service.compute.follower.providers import ProviderFollower
from scheduler_service.compute.placement import options as placement_options
from scheduler_service.compute.placement.client import PlacementClient
from scheduler_service.compute.placement.sharing import SharedProviders
from scheduler_service.engine.health import Health
from scheduler_service.store import schema
from tests.rigs.fake_placement import FakePlacement
from tests.support.placement_service import daemon_options
from tests.support.stores import (
    import_inventory,
    load_snapshot,
)

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
