"""Callers, an inventory and a flavor that many tests start from."""

from __future__ import annotations

# Callers of project p: any test may call any method as CONTEXT.
CONTEXT = {'user_id': 'u', 'project_id': 'p', 'roles': ['admin']}
ADMIN = CONTEXT
OWNER = {**CONTEXT, 'roles': ['member']}
# Callers that are not of project p.
SERVICE = {'user_id': 's', 'project_id': 'service', 'roles': ['service']}
STRANGER = {'user_id': 'x', 'project_id': 'q', 'roles': ['member']}
NOBODY = {'user_id': 'n', 'roles': []}
DEFAULT_POOL = '794ccc2c-d751-44fe-b57f-8894c9f5c842'
GOLD_POOL = '11111111-0000-4000-8000-000000000001'
# Four hosts that differ in memory alone: compute-4 has most and wins.
INVENTORY = {
    'pools': [
        {'id': DEFAULT_POOL, 'name': 'default', 'attributes': {'l': 'silver'}},
        {'id': GOLD_POOL, 'name': 'gold', 'attributes': {'l': 'gold'}},
    ],
    'hosts': [
        {'host': f'compute-{n}', 'vcpus': 8, 'memory_mb': 8192 + n,
         'local_gb': 100, 'ram_allocation_ratio': 1.0}
        for n in range(1, 5)
    ],
    'aggregates': [
        {'id': 1, 'hosts': ['compute-1', 'compute-2'],
         'metadata': {'availability_zone': 'north'}},
    ],
}  # fmt: skip
# A flavor that fits each of these hosts many times.
SMALL = {'vcpus': 1, 'memory_mb': 512, 'root_gb': 1}
