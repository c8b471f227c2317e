"""Filters: which hosts, and which pools, a request may go to."""
