"""A compute service's databases and placement, filled with many hosts.

The rows are written with SQL: through the placement service's API it would
take minutes.
"""

from __future__ import annotations

import random
import uuid
from typing import Any

import sqlalchemy as sa

from tests.support.nova_databases import NovaDatabases, utc_now
from tests.support.placement_service import PlacementService

_CELLS = 2


def fill(
    databases: NovaDatabases, placement: PlacementService, hosts: int
) -> list[str]:
    """Fill both with a number of hosts, half of them in each cell.

    :return: the uuids of the hosts, which are those of their providers
    """
    nodes = _nodes(hosts)
    databases.reset()
    for cell in range(_CELLS):
        databases.add_hosts(nodes[cell::_CELLS], cell + 1)
    _add_providers(placement.database, nodes)
    return [node['uuid'] for node in nodes]


def names(hosts: int) -> list[str]:
    """Return the names of a number of hosts."""
    return [f'compute-{number:05d}' for number in range(hosts)]


def _nodes(hosts: int) -> list[dict[str, Any]]:
    rng = random.Random(1)
    nodes = []
    for name in names(hosts):
        memory = rng.choice((131072, 262144, 524288))
        nodes.append(
            {
                'uuid': str(uuid.UUID(int=rng.getrandbits(128), version=4)),
                'host': name,
                'vcpus': rng.choice((32, 64, 96)),
                'memory_mb': memory,
                'free_ram_mb': memory,
                'memory_mb_used': 0,
                'local_gb': 2000,
                'free_disk_gb': 2000,
            }
        )
    return nodes


def _add_providers(url: str, nodes: list[dict[str, Any]]) -> None:
    """Add a provider with four inventories for each node."""
    engine = sa.create_engine(url)
    found = sa.MetaData()
    found.reflect(
        engine, only=('resource_providers', 'inventories', 'resource_classes')
    )
    providers = found.tables['resource_providers']
    inventories = found.tables['inventories']
    kinds = found.tables['resource_classes']
    stamp = {'created_at': utc_now(), 'updated_at': utc_now()}
    with engine.begin() as conn:
        numbers = dict(
            conn.execute(sa.select(kinds.c.name, kinds.c.id)).tuples().all()
        )
        conn.execute(
            sa.insert(providers),
            [
                {
                    **stamp, 'id': number, 'uuid': node['uuid'],
                    'name': node['host'], 'generation': 1,
                    'root_provider_id': number,
                }
                for number, node in enumerate(nodes, 1)
            ],
        )  # fmt: skip
        conn.execute(
            sa.insert(inventories),
            [
                {
                    **stamp, 'resource_provider_id': number,
                    'resource_class_id': numbers[kind],
                    'total': node[column], 'max_unit': node[column],
                    'reserved': 0, 'min_unit': 1, 'step_size': 1,
                    'allocation_ratio': 1.0,
                }
                for number, node in enumerate(nodes, 1)
                for kind, column in (
                    ('VCPU', 'vcpus'),
                    ('MEMORY_MB', 'memory_mb'),
                    ('DISK_GB', 'local_gb'),
                    # As many as processors: for requests for candidates.
                    ('VGPU', 'vcpus'),
                )
            ],
        )  # fmt: skip
    engine.dispose()
