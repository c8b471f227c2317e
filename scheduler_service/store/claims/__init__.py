"""Claims: capacity taken for consumers, all of a batch or nothing.

Where to look:

- ``batch``: a batch of claims is prepared, sent and made
- ``claim_steps``: the statements that make a batch, each with its guard
- ``claim_sql``: claims, and the SQL that takes and gives back capacity
- ``pg_claims``: claims or releases of a batch in one round trip, on PostgreSQL
- ``pg_statements``: sends prepared statements through libpq
- ``lifecycle``: claims are released, confirmed and moved
- ``released_claims``: claims expire, or are undone or superseded
- ``outcomes``: outcomes of requests, and releases
- ``stage_records``: what stages of the cycle may have done for claims
- ``claim_queries``: claims as an operator lists them
"""

from scheduler_service.engine.ports import ClaimLost
from scheduler_service.store.claims.batch import ClaimBatch
from scheduler_service.store.claims.claim_queries import held_of, placements
from scheduler_service.store.claims.claim_sql import Claim
from scheduler_service.store.claims.released_claims import run_somewhere

__all__ = [
    'Claim',
    'ClaimBatch',
    'ClaimLost',
    'held_of',
    'placements',
    'run_somewhere',
]
