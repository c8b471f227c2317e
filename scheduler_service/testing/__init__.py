"""Builders for tests of plug-ins, in this tree and in others.

They keep nothing, so tests may run them in any thread.
"""

from scheduler_service.testing.builders import filter_results, table

# The name before the rename, kept for one release.
verdicts = filter_results

__all__ = ['filter_results', 'table', 'verdicts']
