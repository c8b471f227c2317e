"""The rule for reading numbers from the metadata of aggregates."""

from __future__ import annotations

from collections.abc import Iterable


def least_number(
    values: Iterable[str], default: float, cast: type[float] | type[int]
) -> float:
    """Return the least of some metadata values as a number.

    One value that is no number makes the whole thing fall back to the
    default, whatever the others say.
    """
    try:
        return min((cast(value) for value in values), default=default)
    except ValueError:
        return default
