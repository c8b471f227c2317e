"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def wait_until(
    check: Callable[[], Any], seconds: float = 60.0, pause_s: float = 0.02
) -> Any:
    """Call *check* until it returns something true; return that.

    :param pause_s: between two calls; longer where a call takes much
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = check()
        if found:
            return found
        time.sleep(pause_s)
    raise AssertionError(f'not within {seconds} s')
