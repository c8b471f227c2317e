"""Extra-spec operators: whether a value satisfies a requirement.

The first word of a requirement may be an operator. The value is then compared
with the next word, or for some operators with all following words. Without an
operator the value has to equal the whole requirement. Stateless.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

#: The scope of extra specs that are matched with aggregate metadata.
AGGREGATE_SCOPE = 'aggregate_instance_extra_specs'
_NUMBERS: dict[str, Callable[[float, float], bool]] = {
    # In extra specs = means greater or equal.
    '=': operator.ge,
    '==': operator.eq,
    '!=': operator.ne,
    '>=': operator.ge,
    '<=': operator.le,
}
_STRINGS: dict[str, Callable[[str, str], bool]] = {
    's==': operator.eq,
    's!=': operator.ne,
    's<': operator.lt,
    's<=': operator.le,
    's>': operator.gt,
    's>=': operator.ge,
    '<in>': lambda value, word: word in value,
}


class NotComparableError(ValueError):
    """A numeric operator is used on a value that is no number."""


def match(value: str | None, requirement: str) -> bool:
    """Return whether *value* satisfies *requirement*; None never does.

    :raises NotComparableError: the requirement has a numeric operator, and
        the value is no number
    :raises ValueError: the requirement itself is not valid: a numeric
        operator without a number, or ``<or>`` without an alternative
    """
    if value is None:
        return False
    words = requirement.split()
    if not words:
        return requirement == value
    sign, rest = words[0], words[1:]
    if sign == '<or>':
        return _any_of(value, rest)
    if sign == '<all-in>':
        return bool(rest) and all(word in value for word in rest)
    if sign in _STRINGS:
        return bool(rest) and _STRINGS[sign](value, rest[0])
    if sign in _NUMBERS:
        return bool(rest) and _compare(sign, value, float(rest[0]))
    return requirement == value


def _compare(sign: str, value: str, number: float) -> bool:
    try:
        stated = float(value)
    except ValueError:
        raise NotComparableError(
            f'{value[:100]!r} is no number to compare by {sign}'
        ) from None
    return _NUMBERS[sign](stated, number)


def _any_of(value: str, words: list[str]) -> bool:
    """Whether the value is one of ``a <or> b <or> c``.

    The word after each alternative should be ``<or>``, and is not checked.
    """
    if not words:
        raise ValueError('<or> without an alternative')
    return value in words[::2]
