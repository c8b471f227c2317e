"""Follows the compute service's databases, and writes into our store.

All of it runs in the background, on threads of its own: no request waits for
it. One daemon of those that share a store does it; the others learn what
changed from the change feed, as of any other write.
"""
