"""Hosts with resource providers, and requests that are claimed there."""

from __future__ import annotations

import json
import uuid
from typing import Any

from scheduler_service.cmd.daemon import Daemon
from scheduler_service.compute.placement.candidates import Tree
from scheduler_service.compute.placement.claims import AllocationRequest
from scheduler_service.compute.placement.records import STAGE
from scheduler_service.engine.ports import StageRecord
from scheduler_service.model import documents
from tests.support.nova_databases import NovaDatabases
from tests.support.placement_service import PlacementService
from tests.support.stores import stored_host
from tests.support.waiting import LIMIT_S, wait_until

FLAVOR = {'flavorid': 'f', 'vcpus': 1, 'memory_mb': 512, 'root_gb': 1}
TAKEN = {'VCPU': 1, 'MEMORY_MB': 512, 'DISK_GB': 1}
ROOM = {'VCPU': 8, 'MEMORY_MB': 8192, 'DISK_GB': 100}


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
    return [
        placement.selected.host
        for placement in future.result(LIMIT_S).placements
    ]


def new() -> str:
    """Return a new uuid."""
    return str(uuid.uuid4())


def provider(service: PlacementService, **amounts: Any) -> str:
    """Add a provider; return its uuid."""
    made = new()
    service.add_provider(made, made, **(amounts or ROOM))
    return made


def wanted(on: str, consumer: str = '', **more: Any) -> AllocationRequest:
    """Return allocations that are wanted."""
    return AllocationRequest(consumer or new(), on, TAKEN, 'p', 'u', **more)


def record_of(consumer: str, on: str, allocations: Any) -> StageRecord:
    """Return the record of what a claim may have left on a host."""
    tree = Tree(allocations, {}).document
    return StageRecord(STAGE, consumer, 0, on, '', json.dumps(tree))
