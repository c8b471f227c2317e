"""Hosts whose data a filter cannot read: they fail, with a reason.

Capabilities, CPU information, statistics and the like are free text of the
hosts. A filter that cannot read the text of a host rejects that host, with the
reason; other hosts are not affected.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from scheduler_service import errors, specops
from scheduler_service.model import Request
from scheduler_service.model.problems import shown

#: The beginning of such a host's reason.
UNREADABLE = 'the host cannot be evaluated: '
# Exceptions of reading a value of an unexpected form.
FAULTS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


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


def refusal(
    at: str, expected: str, value: Any, detail: str = ''
) -> errors.InvalidRequest:
    """Return the error on a part of a request.

    :param at: its path, such as ``scheduler_hints.query``
    :param expected: what it should be
    :param detail: what is wrong with it
    """
    text = f'{at}: expected {expected}, got {shown(value)}'
    return errors.InvalidRequest(
        f'{text} ({detail})' if detail else text, at=at
    )


@contextlib.contextmanager
def reading(at: str, expected: str, value: Any) -> Iterator[None]:
    """Refuse the request where the code inside cannot read a part of it.

    :param at: its path
    :raises InvalidRequest: with the path and what is expected there
    :raises NotComparableError: a value of a host is not a number
    """
    try:
        yield
    except specops.NotComparableError:
        raise
    except FAULTS as fault:
        raise refusal(at, expected, value, str(fault)) from None


def spec_path(key: str) -> str:
    """Return the path of an extra spec."""
    return f'flavor.extra_specs.{key}'


def setting_path(request: Request, spec: str, image_property: str) -> str:
    """Return the path of an extra spec, or of the property in its place."""
    properties = request.image_properties
    if image_property in properties and spec not in request.flavor.extra_specs:
        return f'image.properties.{image_property}'
    return spec_path(spec)
