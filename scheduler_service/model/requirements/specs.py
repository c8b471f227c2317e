"""Extra specs of a flavor, and the properties of an image in their place."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from scheduler_service import errors, specops
from scheduler_service.model.problems import shown

_TRUE = frozenset(('1', 't', 'true', 'on', 'y', 'yes'))
# Stands for all larger amounts: no host has as much.
TOO_MUCH = 10**15
# Exceptions of reading a value of an unexpected form.
FAULTS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class Specs(NamedTuple):
    """Extra specs with image properties; ``hw:NAME`` is like ``hw_NAME``.

    :ivar strict: a value that means nothing is refused, and not left out
    """

    extra: Mapping[str, str]
    image: Mapping[str, Any]
    strict: bool = False

    def both(self, name: str, scope: str = 'hw') -> tuple[str, str]:
        """Return the extra spec and the property; empty: absent."""
        stated = self.extra.get(f'{scope}:{name}')
        found = self.image.get(f'{scope}_{name}')
        return (
            '' if stated is None else str(stated),
            '' if found is None else str(found),
        )

    def path(self, name: str, scope: str = 'hw') -> str:
        """Return where the value of a name stands: the flavor goes first."""
        if f'{scope}:{name}' in self.extra:
            return spec_path(f'{scope}:{name}')
        return property_path(f'{scope}_{name}')

    def value(
        self, name: str, allowed: Collection[str] = (), scope: str = 'hw'
    ) -> str:
        """Return the value of flavor, else of image; empty: neither has any.

        :param allowed: values that mean something; empty: all do
        :raises InvalidRequest: they differ, or the value means nothing
        """
        stated, found = self.both(name, scope)
        if stated and found and stated != found:
            self._conflict(name, scope, stated, found)
        value = stated or found
        return self.word(self.path(name, scope), value, allowed)

    def word(self, at: str, value: str, allowed: Collection[str]) -> str:
        """Return a value, or nothing where it means nothing.

        :param at: its path
        :param allowed: values that mean something; empty: all do
        :raises InvalidRequest: it means nothing
        """
        if not value or not allowed or value in allowed:
            return value
        self.wrong(at, ', '.join(sorted(allowed)), value)
        return ''

    def wrong(self, at: str, expected: str, value: Any) -> None:
        """Refuse a value that means nothing, or leave it out.

        :raises InvalidRequest: with the path and what is expected there
        """
        if self.strict:
            raise refusal(at, expected, value)

    def is_true(self, name: str) -> bool:
        """Whether flavor or image say yes.

        :raises InvalidRequest: one says yes, and the other one no
        """
        stated, found = self.both(name)
        if stated and found and is_true(stated) != is_true(found):
            self._conflict(name, 'hw', stated, found)
        return is_true(stated or found)

    def _conflict(
        self, name: str, scope: str, stated: str, found: str
    ) -> None:
        self.wrong(
            property_path(f'{scope}_{name}'),
            f'{shown(stated)}, as {spec_path(f"{scope}:{name}")} says',
            found,
        )


def is_true(value: Any) -> bool:
    """Whether an extra spec or image property is a true boolean."""
    return str(value).strip().lower() in _TRUE


def amount_of(value: str) -> int | None:
    """Return the amount of an extra spec; None: it is no whole number."""
    digits = value.strip().removeprefix('+')
    if not digits.isdecimal():
        return None
    digits = digits.lstrip('0')
    return int(digits or 0) if len(digits) <= 15 else TOO_MUCH


def refusal(
    at: str, expected: str, value: Any, detail: str = ''
) -> errors.InvalidRequest:
    """Return the error on a part of a request.

    :param at: its path, such as ``scheduler_hints.query``
    :param expected: what it should be
    :param detail: what is wrong with it
    """
    more = f' ({detail})' if detail else ''
    text = f'expected {expected}, got {shown(value)}{more}'
    return errors.InvalidRequest.at(at, text)


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


def property_path(name: str) -> str:
    """Return the path of an image property."""
    return f'image.properties.{name}'
