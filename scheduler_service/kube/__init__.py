"""Follows the nodes and pods of a cluster at its API server."""
