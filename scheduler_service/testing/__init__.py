"""Builders for tests of plug-ins, ours and others'."""

from scheduler_service.testing.builders import table, verdicts

__all__ = ['table', 'verdicts']
