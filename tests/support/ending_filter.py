"""A filter that ends threads of its process, for daemons under test."""

from __future__ import annotations

import ctypes
import logging
import threading
from typing import Any

from scheduler_service.filters.hosts import HostFilter

LOG = logging.getLogger(__name__)
CONFIG = """
[filter_scheduler]
available_filters = scheduler_service.filters.hosts.all_filters
available_filters = tests.support.ending_filter.EndingFilter
enabled_filters = EndingFilter
"""


def end(name: str) -> None:
    """Raise SystemExit in the threads of a name, wherever they are."""
    for thread in threading.enumerate():
        if thread.name == name and thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)
            )
    LOG.warning('Ending %s;', name)


class EndingFilter(HostFilter):
    """Logs the threads, and ends those that a flavor names."""

    def mask(self, table: Any, request: Any, settings: Any) -> None:
        """Begin that, once the request has its answer."""
        verb, _, name = request.flavor.name.partition(' ')
        if verb == 'end':
            threading.Timer(0.5, end, (name,)).start()
        elif verb == 'threads':
            names = sorted({each.name for each in threading.enumerate()})
            LOG.warning('Threads: %s;', ','.join(names))
