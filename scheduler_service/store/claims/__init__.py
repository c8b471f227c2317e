"""Claims: capacity taken for consumers, all of a batch or nothing.

Where to look:

- ``batch``: a batch of claims before it is sent and while it is under way
- ``transaction``: the claims of a batch as statements of one transaction
- ``pg_claim``: the same as one round trip, on PostgreSQL
- ``pg_statements``: sends prepared statements through libpq
- ``claim_sql``: the SQL that takes and gives back capacity, by dialect
- ``group_policies``: server groups' policies, checked by each claim
- ``lifecycle``: claims are released, confirmed and moved
- ``expiry``: claims that were not confirmed in time are released
- ``unused``: claims that nobody uses are released
- ``placement_records``: claims that have allocations in placement
- ``claim_queries``: claims as an operator lists them
"""

from scheduler_service.store.claims.batch import (
    ClaimBatch,
    PendingClaim,
    prepare,
    send,
)
from scheduler_service.store.claims.claim_queries import placements
from scheduler_service.store.claims.transaction import (
    Claim,
    ClaimLost,
    claim_all,
)
from scheduler_service.store.claims.unused import run_somewhere

__all__ = [
    'Claim',
    'ClaimBatch',
    'ClaimLost',
    'PendingClaim',
    'claim_all',
    'placements',
    'prepare',
    'run_somewhere',
    'send',
]
