"""What a filter makes of a host whose data it cannot read: the host fails.

Capabilities, CPU information, statistics and the like are free text of the
hosts. A filter that cannot make sense of what one host reports keeps that
host out, with the reason, and judges all other hosts as if it were not there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scheduler_service import specops

#: How the reason begins that such a host gets.
UNREADABLE = 'the host cannot be judged: '
# What reading a value of another form than expected raises.
FAULTS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def where_readable(predicate: Callable[..., bool]) -> Callable[..., bool]:
    """Return a predicate that is false of values that cannot be read.

    Nothing of the request may be parsed in it: such faults would be hidden.
    """

    def passes(*values: Any) -> bool:
        try:
            return predicate(*values)
        except FAULTS:
            return False

    return passes


def where_comparable(predicate: Callable[..., bool]) -> Callable[..., bool]:
    """Return a predicate that is false of values that are no numbers.

    Any other fault is one of the request, and fails it.
    """

    def passes(*values: Any) -> bool:
        try:
            return predicate(*values)
        except specops.NotComparableError:
            return False

    return passes


def why_unreadable(
    predicate: Callable[..., object], what: str, *values: Any
) -> str:
    """Return the reason where a predicate cannot be applied, '' where it can.

    :param predicate: or whatever else reads the values
    :param what: the data that is read, in words
    """
    try:
        predicate(*values)
    except FAULTS as fault:
        return f'{UNREADABLE}{what}: {type(fault).__name__}: {fault}'
    return ''
