"""Engines that claim in a stand-in for the placement service."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import sqlalchemy as sa

from scheduler_service.compute.follower.providers import ProviderFollower
from scheduler_service.compute.placement import options as placement_options
from scheduler_service.compute.placement.candidate_stage import (
    CandidateStage,
    RefusalChecks,
)
from scheduler_service.compute.placement.candidates import SharedProviders
from scheduler_service.compute.placement.claimer import PlacementClaimer
from scheduler_service.compute.placement.client import PlacementClient
from scheduler_service.factory import build
from scheduler_service.model import documents
from scheduler_service.scheduler import Scheduler
from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from tests.rigs.fake_placement import FakePlacement
from tests.support.placement_service import daemon_options
from tests.support.services import new_conf
from tests.support.stores import import_inventory
from tests.support.waiting import LIMIT_S

ROOM = {'VCPU': 64, 'MEMORY_MB': 65536, 'DISK_GB': 1000}
TAKEN = {'VCPU': 1, 'MEMORY_MB': 512, 'DISK_GB': 1}


def add_host(store: Store, fake: FakePlacement, **amounts: int) -> str:
    """Add a host with room, and its provider; return its provider's uuid.

    :param amounts: what the service has, where it is not what the store says
    """
    made = fake.add_provider(**(amounts or ROOM))
    host = {
        'host': f'h-{made}', 'uuid': made, 'vcpus': ROOM['VCPU'],
        'memory_mb': ROOM['MEMORY_MB'], 'local_gb': ROOM['DISK_GB'],
        'cpu_allocation_ratio': 1.0, 'ram_allocation_ratio': 1.0,
        'resources': {'CUSTOM_FPGA': {'total': 64}},
    }  # fmt: skip
    import_inventory(store, {'hosts': [host]})
    return made


def request(*uuids: str, custom: bool = False, **more: Any) -> Any:
    """Return a request for small instances.

    :param custom: with what only a provider below the host's own has
    """
    extra = {'resources:CUSTOM_FPGA': '1'} if custom else {}
    return documents.request(
        {
            'flavor': {'flavorid': 'f', 'vcpus': 1, 'memory_mb': 512,
                       'root_gb': 1, 'extra_specs': extra},
            'instance_uuids': list(uuids),
            'num_instances': len(uuids),
            'project_id': 'p',
            'user_id': 'u',
            **more,
        }
    )  # fmt: skip


def new(count: int = 1) -> list[str]:
    """Return new uuids."""
    return [str(uuid.uuid4()) for _ in range(count)]


def records(store: Store) -> set[tuple[str, int]]:
    """Return the records of allocations: instances, and ids of hosts."""
    table = schema.stage_records.c
    with store.reading() as conn:
        found = conn.execute(sa.select(table.instance_uuid, table.host_id))
        return {(uuid, host_id) for uuid, host_id in found}


@contextlib.contextmanager
def engine(
    store: Store,
    fake: FakePlacement,
    timeout: float = 10.0,
    retries: int = 0,
    mirror: Callable[[], bool] = lambda: False,
    follows: bool = True,
    **options: Any,
) -> Iterator[Scheduler]:
    """Run an engine that claims in a placement service, and its follower.

    :param timeout: of calls, in seconds
    :param retries: how often a call is made again
    :param mirror: reads the compute service's databases before a refusal
    :param follows: whether a thread follows providers
    :param options: of the engine, as of ``new_conf``
    """
    connection = store.engine.url.render_as_string(hide_password=False)
    conf = daemon_options(fake)
    from keystoneauth1 import loading

    loading.register_session_conf_options(conf, 'placement')
    for name, value in (
        ('timeout', timeout),
        ('connect_retries', retries),
        ('status_code_retries', retries),
    ):
        conf.set_override(name, value, 'placement')
    client = PlacementClient(placement_options.new_adapter(conf))
    made = build(new_conf(database__connection=connection, **options), store)
    shared = SharedProviders(client, 60.0)
    follower = ProviderFollower(
        store, client, made.health, 60.0, lambda: True, shared
    )
    made.enter(
        lambda pipeline, health, queue, undoer: [
            CandidateStage(client, shared, queue),
            RefusalChecks(
                client,
                queue,
                lambda hosts, since: mirror() | follower.catch_up(hosts),
            ),
            PlacementClaimer(
                client,
                store,
                health,
                queue,
                undoer,
                lambda host: None,
                shared,
            ),
        ]
    )
    assert made.start()
    if follows:
        follower.start()
    try:
        yield made
    finally:
        follower.stop(LIMIT_S)
        made.stop()
