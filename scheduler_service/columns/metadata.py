"""The rule for reading numbers from the metadata of aggregates."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler_service.model.limits import MAX_NUMBER


def least_number(
    values: Iterable[str], default: float, cast: type[float] | type[int]
) -> float:
    """Return the least of some metadata values as a number.

    One value that is no number makes the whole thing fall back to the
    default, whatever the others say. A number too large to calculate with
    counts as the largest one.
    """
    try:
        numbers = [cast(value) for value in values]
    except ValueError:
        return default
    # NaN alone differs from itself.
    if not numbers or any(number != number for number in numbers):
        return default
    return max(min(*numbers, cast(MAX_NUMBER)), cast(-MAX_NUMBER))
