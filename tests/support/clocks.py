"""Clocks that tests move on."""

from __future__ import annotations


class Clock:
    """Monotonic seconds, which a test moves on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now
