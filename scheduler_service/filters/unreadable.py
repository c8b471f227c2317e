"""Hosts whose data a filter cannot read: they fail, with a reason.

Capabilities, CPU information, statistics and the like are free text of the
hosts. A filter that cannot read the text of a host rejects that host, with the
reason; other hosts are not affected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scheduler_service.model.requirements.specs import FAULTS

#: The beginning of such a host's reason.
UNREADABLE = 'the host cannot be evaluated: '


def where_readable(
    predicate: Callable[..., bool],
    faults: tuple[type[Exception], ...] = FAULTS,
) -> Callable[..., bool]:
    """Return a predicate that is false of values that cannot be read.

    The predicate must not parse the request: such faults would be hidden.
    """

    def passes(*values: Any) -> bool:
        try:
            return predicate(*values)
        except faults:
            return False

    return passes


def why_unreadable(
    predicate: Callable[..., object], what: str, *values: Any
) -> str:
    """Return the reason where a predicate cannot be applied, '' where it can.

    :param predicate: any function that reads the values
    :param what: the data that is read, in words
    """
    try:
        predicate(*values)
    except FAULTS as fault:
        return f'{UNREADABLE}{what}: {type(fault).__name__}: {fault}'
    return ''


#: Of an extra spec that is compared.
REQUIREMENT = 'a value, or an operator with a value, such as ">= 4"'
