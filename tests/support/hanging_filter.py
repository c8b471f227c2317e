"""A filter that hangs while a file is there, for daemons under test."""

from __future__ import annotations

import os
import pathlib
import time
from typing import Any

from scheduler_service.filters.hosts import HostFilter

# The variable that names the file.
FILE = 'TEST_HANGING_FILTER_FILE'


class HangingFilter(HostFilter):
    """Waits while the file is there, and says nothing."""

    def mask(self, table: Any, request: Any, settings: Any) -> None:
        """Wait, and have the engine wait."""
        file = pathlib.Path(os.environ[FILE])
        while file.exists():
            time.sleep(0.05)


CONFIG = """
[filter_scheduler]
available_filters = scheduler_service.filters.hosts.all_filters
available_filters = tests.support.hanging_filter.HangingFilter
enabled_filters = HangingFilter
"""
