"""Follows the compute service's databases, and writes into our store.

The follower runs on threads of its own: no request waits for it. Of the
daemons that share a store one follows; the others learn of the changes from
the change feed, as of any other write.
"""
