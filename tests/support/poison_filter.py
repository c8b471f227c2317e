"""A filter that ends its process, to be loaded by daemons under test."""

from __future__ import annotations

import os
from typing import Any

from scheduler_service.filters.hosts import HostFilter


class PoisonFilter(HostFilter):
    """Ends the process when a flavor is called poison."""

    def mask(self, table: Any, request: Any, settings: Any) -> None:
        """End, without a word, or say nothing."""
        if request.flavor.name == 'poison':
            os._exit(9)
