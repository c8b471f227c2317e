"""Builders for tests of plug-ins, in this tree and in others.

They keep nothing, so tests may run them in any thread.
"""

from scheduler_service.testing.builders import (
    filter_results,
    raw_weights,
    table,
)
from scheduler_service.testing.keys import check_keys

__all__ = ['check_keys', 'filter_results', 'raw_weights', 'table']
