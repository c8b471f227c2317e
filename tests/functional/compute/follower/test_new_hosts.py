"""A host of the compute service is there once its provider is read."""

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler_service.compute.follower.applying import Applier
from scheduler_service.compute.follower.cells import CellChanges
from scheduler_service.compute.follower.databases import Cell
from scheduler_service.compute.follower.providers import ProviderFollower
from scheduler_service.compute.placement import options as placement_options
from scheduler_service.compute.placement.candidates import SharedProviders
from scheduler_service.compute.placement.client import PlacementClient
from scheduler_service.engine.health import Health
from scheduler_service.model import HostReport
from scheduler_service.store.reading import loading
from tests.rigs.fake_placement import FakePlacement
from tests.support.placement_service import daemon_options
from tests.support.waiting import LIMIT_S

CELL = Cell(1, str(uuid.uuid4()), 'cell1', 'sqlite://')
pytestmark = pytest.mark.db


@pytest.fixture
def store(make_store: Any) -> Any:
    """A store without hosts."""
    return make_store('sqlite')


@pytest.fixture
def follower(store: Any, fake: FakePlacement) -> Iterator[ProviderFollower]:
    """What follows providers."""
    client = PlacementClient(
        placement_options.new_adapter(daemon_options(fake))
    )
    made = ProviderFollower(
        store,
        client,
        Health(),
        60.0,
        lambda: True,
        SharedProviders(client, 60.0),
    )
    made.start()
    yield made
    made.stop(LIMIT_S)


@pytest.fixture
def applier(store: Any, follower: ProviderFollower) -> Applier:
    """What writes the hosts of a cell, after the first pass."""
    made = Applier(store, lambda: None)
    made.on_new = follower.add_new
    return made


def changes(*uuids: str, hosts: Any = ('c1',)) -> CellChanges:
    """Return changes with nodes of the host c1, as a read gives them."""
    reports = [
        HostReport('c1', 'c1', {'uuid': one, 'cell_uuid': CELL.uuid})
        for one in uuids
    ]
    return CellChanges(CELL, hosts and {*hosts}, reports, [], [], [])


def stored(store: Any) -> dict[str, tuple[str, int]]:
    """Return of each host the uuid and the processors."""
    with store.reading() as conn:
        found = loading.hosts(conn).values()
        return {host.host: (host.uuid, host.vcpus) for host in found}


def test_a_new_host_is_there_with_its_capacity(store, fake, follower, applier):
    made = fake.add_provider(VCPU=8, MEMORY_MB=1024)
    began = time.monotonic()
    applier.apply(changes(made))
    assert stored(store) == {}
    assert follower.read_new()
    assert stored(store) == {'c1': (made, 8)}
    # From then on it changes at once.
    applier.apply(changes(made))
    assert not follower.read_new()
    # A request that was refused meanwhile did not see it.
    assert follower.read_new(began)
    assert not follower.read_new(time.monotonic())


@pytest.mark.parametrize('totals', [{}, {'VCPU': 8}])
def test_a_host_whose_provider_is_late_is_tried_again(
    store, fake, follower, applier, totals
):
    """The service has the provider after the row, and then its amounts."""
    made = fake.add_provider()
    if totals:
        fake.remove_provider(made)
    applier.apply(changes(made))
    follower.read_new()
    assert stored(store) == {}
    fake.set_totals(made, VCPU=8)
    follower.read_new()
    assert stored(store) == {'c1': (made, 8)}


@pytest.mark.parametrize('hosts', [('c1',), None])
def test_a_host_that_is_gone_again_is_forgotten(
    store, fake, follower, applier, hosts
):
    made = fake.add_provider()
    applier.apply(changes(made))
    applier.apply(changes(hosts=hosts))
    fake.set_totals(made, VCPU=8)
    assert not follower.read_new()
    assert stored(store) == {}


def test_a_host_that_was_made_anew_is_new(store, fake, follower, applier):
    old, made = fake.add_provider(VCPU=8), fake.add_provider()
    applier.apply(changes(old))
    follower.read_new()
    applier.apply(changes(made))
    assert stored(store) == {}
    fake.set_totals(made, VCPU=4)
    follower.read_new()
    assert stored(store) == {'c1': (made, 4)}
