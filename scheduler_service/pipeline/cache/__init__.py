"""Rankings that are kept between requests that read the same of hosts.

A switch turns it off; what it returns is what a pass over all hosts returns.
"""

from scheduler_service.pipeline.cache.ranking_cache import (
    CacheLookup,
    RankingCache,
)

__all__ = ['CacheLookup', 'RankingCache']
