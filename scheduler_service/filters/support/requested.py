"""Refuses requests of which a hint, an extra spec or a property is nonsense.

That is no fault of the scheduler, so the caller gets an error that names what
cannot be read, and what is expected there. Stateless.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from scheduler_service import errors, specops
from scheduler_service.filters.support.unreadable import FAULTS
from scheduler_service.model import Request
from scheduler_service.model.problems import shown

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
    :raises NotComparableError: it is something of a host that is no number
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
