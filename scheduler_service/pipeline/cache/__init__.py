"""What requests leave for later ones, so that these look at fewer hosts.

A search with this cache has the same result as one without it, to the last
bit. It is kept true by the log of changes of the table that it belongs to.
"""

from scheduler_service.pipeline.cache.search import CachedSearch, SearchCache

__all__ = ['CachedSearch', 'SearchCache']
