"""Both books agree, whatever happens; see benchmarks.chaos."""

import signal
import uuid
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service.store import schema
from tests.rigs import chaos, placement_chaos
from tests.support import servers
from tests.support.documents import CONTEXT
from tests.support.stores import stored_host
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow
# What no host has before.
ROOM_MB = 8193


# See clouds.clean.
@pytest.mark.filterwarnings('ignore:unclosed <socket:ResourceWarning')
def test_allocations_are_those_of_claims_whatever_happens():
    with (
        servers.rabbitmq() as (broker, bus),
        servers.postgresql(durable=True) as (server, base),
        # Use that is counted twice until providers are read again is no fault:
        # a minute of that would be a minute of waiting.
        placement_chaos.cloud(
            base, bus, daemons=2, workers=1, interval_s=10.0
        ) as cloud,
    ):
        told = chaos.run(
            cloud,
            broker,
            server,
            callers=4,
            seconds=10,
            every=1,
            # One that comes to each of the faults below early.
            seed=6,
            least_faults=4,
            least_placed=6,
            kind=placement_chaos.PlacementCaller,
            more=(cloud.restart_placement,),
        )
    assert {'kill', 'stop', 'restart_placement'} <= told['faults'].keys()
    assert told['wrong'] == []
    assert told['untrue'] == []
    assert told['books'] == []


def mark_of(cloud: placement_chaos.PlacementCloud, vm: str) -> Any:
    """Return when the allocations of an instance were made, as recorded."""
    table = schema.stage_records.c
    query = sa.select(table.made_at).where(table.instance_uuid == vm)
    with cloud.store.reading() as conn:
        return conn.execute(query).scalar_one()


def use_by_others(cloud: placement_chaos.PlacementCloud) -> list[Any]:
    """Return the hosts with use that is not by claims."""
    offered = schema.inventories.c
    query = sa.select(offered.host_id, offered.reported)
    with cloud.store.reading() as conn:
        return list(conn.execute(query.where(offered.reported != 0)))


# See clouds.clean.
@pytest.mark.filterwarnings('ignore:unclosed <socket:ResourceWarning')
def test_a_claim_counts_once_whose_daemon_was_killed_before_the_mark():
    with (
        servers.rabbitmq() as (_, bus),
        servers.postgresql() as (_, base),
        # All providers are read at the start of a daemon alone.
        placement_chaos.cloud(
            base, bus, daemons=1, workers=1, interval_s=3600.0
        ) as cloud,
    ):
        client = cloud.client()
        for started in range(2, 12):
            vm = str(uuid.uuid4())
            answer = client.select_destinations(
                CONTEXT, {'instance_uuids': [vm], 'flavor': {'memory_mb': 512}}
            )
            (victim,) = cloud.running
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            cloud.running.clear()
            if mark_of(cloud, vm) is None:
                break
            cloud.start()
            cloud.wait_for('Ready:', started)
        else:
            pytest.fail('each mark was quicker than the kill')
        ((provider, _),) = cloud.placement.held(vm).items()
        cloud.placement.set_inventories(
            provider, VCPU=640, MEMORY_MB=ROOM_MB, DISK_GB=1000
        )
        cloud.start()
        host = answer['placements'][0]['selected']['host']
        # Its use is written with that.
        wait_until(lambda: stored_host(cloud.store, host).memory_mb == ROOM_MB)
        assert mark_of(cloud, vm) is not None
        assert use_by_others(cloud) == []
        assert cloud.books() == []
