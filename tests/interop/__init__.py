"""Tests with other services, as their packages come from the index."""
