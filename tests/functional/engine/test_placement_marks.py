"""A claim counts once, though nobody recorded that its allocations were made.

The placement service is a stand-in that keeps every call: the real one, and
daemons that are killed, are met in ``tests/interop``.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service import errors
from scheduler_service.compute.follower.providers import ProviderFollower
from scheduler_service.compute.placement import options as placement_options
from scheduler_service.compute.placement.candidates import SharedProviders
from scheduler_service.compute.placement.client import PlacementClient
from scheduler_service.engine.health import Health
from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from tests.rigs import fake_placement
from tests.rigs.fake_placement import FakePlacement
from tests.support.databases import migrated_database
from tests.support.placement_engines import ROOM, engine, new, request
from tests.support.placement_service import daemon_options
from tests.support.stores import import_inventory, stored_host
from tests.support.tcp_proxy import Mode, through_proxy
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.db
HOST = 'h1'
_AWAY_S = 5.0
# Longer than a daemon that lives takes to record an end; less than any call
# may take.
_QUIET_S = 10.0


@pytest.fixture(params=['sqlite', 'postgresql'])
def store(make_store: Any, request: pytest.FixtureRequest) -> Any:
    """A store."""
    return make_store(request.param)


def mirrored_host(store: Store, fake: FakePlacement) -> None:
    """Add a host of a cell, and its provider."""
    host = {
        'host': HOST, 'uuid': fake.add_provider(**ROOM), 'cell_uuid': new()[0],
        'vcpus': ROOM['VCPU'], 'memory_mb': ROOM['MEMORY_MB'],
        'local_gb': ROOM['DISK_GB'], 'cpu_allocation_ratio': 1.0,
        'ram_allocation_ratio': 1.0,
    }  # fmt: skip
    import_inventory(store, {'hosts': [host]})


def follower(
    store: Store, fake: FakePlacement, interval: float = 0.0
) -> ProviderFollower:
    """Return what follows providers, of which no thread runs.

    :param interval: after which all are read again, in seconds
    """
    client = PlacementClient(
        placement_options.new_adapter(daemon_options(fake))
    )
    shared = SharedProviders(client, 60.0)
    return ProviderFollower(
        store, client, Health(), interval, lambda: True, shared
    )


def marks(store: Store, vm: str) -> Any:
    """Return the row of the record of an instance's allocations."""
    table = schema.stage_records
    with store.reading() as conn:
        return conn.execute(
            sa.select(table).where(table.c.instance_uuid == vm)
        ).one()


def age(store: Store) -> float:
    """Make claims older; return when their calls began."""
    since = time.time() - _QUIET_S
    with store.engine.begin() as conn:
        conn.execute(sa.update(schema.instances).values(created_at=since))
        conn.execute(sa.update(schema.stage_records).values(asked_at=since))
    return since


def forget_marks(store: Store, is_asked: bool) -> None:
    """Have no record say that allocations were made.

    :param is_asked: whether records say when their calls began
    """
    age(store)
    changes: dict[str, None] = {'made_at': None}
    if not is_asked:
        changes['asked_at'] = None
    with store.engine.begin() as conn:
        conn.execute(sa.update(schema.stage_records).values(changes))


def used(store: Store) -> int:
    """Return how many processors of the host are used."""
    return int(stored_host(store, HOST).vcpus_used)


def looked_up(fake: FakePlacement) -> set[str]:
    """Return the consumers that were asked for."""
    return {
        path.rpartition('/')[2]
        for verb, path in fake.calls
        if verb == 'GET' and path.startswith('/allocations/')
    }


def place(running: Any, store: Store, *vms: str) -> None:
    """Place instances, and wait until it is recorded that they have it."""
    for vm in vms:
        running.select_destinations(request(vm)).result(LIMIT_S)
    wait_until(lambda: all(marks(store, vm).made_at for vm in vms))


@pytest.mark.parametrize('is_asked', [True, False], ids=['killed', 'NULL'])
@pytest.mark.parametrize('touched', [True, False], ids=['touched', 'all'])
def test_a_claim_without_a_mark_counts_once_in_the_first_report(
    store, fake, is_asked, touched
):
    mirrored_host(store, fake)
    vms = new(3)
    following = follower(store, fake, 3600.0 if touched else 0.0)
    with engine(store, fake) as running:
        place(running, store, *vms)
    following.poll()
    assert used(store) == 3
    assert looked_up(fake) == set()
    forget_marks(store, is_asked)
    if touched:
        following.touch([HOST])
    following.poll()
    assert used(store) == 3
    assert looked_up(fake) == {*vms}
    assert all(marks(store, vm).made_at for vm in vms)
    # Once is enough.
    fake.calls.clear()
    following.touch([HOST])
    following.poll()
    assert used(store) == 3
    assert looked_up(fake) == set()


def test_a_claim_that_was_not_made_is_no_use_of_others(store, fake):
    mirrored_host(store, fake)
    made, lost = new(2)
    with engine(store, fake) as running:
        place(running, store, made, lost)
    # As if the daemon had been killed before the call for one of them.
    fake.allocations.pop(lost)
    forget_marks(store, is_asked=True)
    follower(store, fake).poll()
    assert used(store) == 2
    assert marks(store, made).made_at
    assert not marks(store, lost).made_at


def test_a_call_that_is_under_way_here_is_not_looked_up(store, fake):
    mirrored_host(store, fake)
    held, (vm, other) = fake_placement.Held(), new(2)
    with engine(store, fake, LIMIT_S) as running:
        fake.fail(held, fake.claims, 1)
        whole = request(vm, amounts={'VCPU': ROOM['VCPU']})
        answer = running.select_destinations(whole)
        wait_until(lambda: held.waiting)
        age(store)
        # The service has room yet, so the host is read before the refusal.
        with pytest.raises(errors.NoValidHost):
            running.select_destinations(request(other)).result(LIMIT_S)
        assert any(path.endswith('/usages') for _, path in fake.calls)
        assert looked_up(fake) == set()
        # To another daemon it is a call without an end.
        follower(store, fake).poll()
        assert looked_up(fake) == {vm}
        held.let_go()
        answer.result(LIMIT_S)
        wait_until(lambda: marks(store, vm).made_at)


def test_a_claim_that_is_made_while_its_host_is_read_counts_once_soon(
    store, fake, monkeypatch
):
    mirrored_host(store, fake)
    (vm,) = new()
    with engine(store, fake) as running:
        place(running, store, vm)
    read, made = fake.read, fake.allocations.pop(vm)
    forget_marks(store, is_asked=True)

    def finish_first(path: str, query: Any) -> Any:
        """Have another daemon's call end before the use is read."""
        if path == '/allocation_candidates' and vm not in fake.allocations:
            fake.allocations[vm] = made
            with store.engine.begin() as conn:
                conn.execute(
                    sa.update(schema.stage_records).values(made_at=time.time())
                )
        return read(path, query)

    monkeypatch.setattr(fake, 'read', finish_first)
    # Not that all are read again: that would take an hour.
    following = follower(store, fake, 3600.0)
    following.poll()
    assert vm in fake.allocations

    def is_right() -> bool:
        following.poll()
        return used(store) == 1

    wait_until(is_right)


def test_ends_that_cannot_be_recorded_are_recorded_later(fake, postgresql):
    database = migrated_database(postgresql[1])
    with through_proxy(database) as (proxy, proxied):
        store = Store.connect(proxied, max_pool_size=20)
        mirrored_host(store, fake)
        held, (vm,) = fake_placement.Held(), new()
        # Who follows providers may be first to see that they were made.
        with engine(store, fake, LIMIT_S, follows=False) as running:
            fake.fail(held, fake.claims, 1)
            answer = running.select_destinations(request(vm))
            wait_until(lambda: held.waiting)
            proxy.become(Mode.REFUSE)
            held.let_go()
            since = time.monotonic()
            wait_until(lambda: vm in fake.allocations)
            wait_until(lambda: time.monotonic() - since > _AWAY_S)
            proxy.become(Mode.FORWARD)
            answer.result(LIMIT_S)
            wait_until(lambda: marks(store, vm).made_at)
            row = marks(store, vm)
        # By the thread that made the call: it knows that it has ended.
        assert (row.asked_at, row.call_until) == (None, None)
        store.dispose()
