"""Extra-spec operators: does one value satisfy one requirement?

The requirement's first word may be an operator; then the next word, or for
some all following words, is what the value is compared with. Without an
operator the whole requirement has to equal the value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

_NUMBERS: dict[str, Callable[[float, float], bool]] = {
    # Greater or equal, and yes, it is written like this.
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


def match(value: str | None, requirement: str) -> bool:
    """Say whether *value* satisfies *requirement*; None satisfies nothing.

    :raises ValueError: a numeric operator meets what is no number, or
        ``<or>`` has no alternative
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
        return bool(rest) and _NUMBERS[sign](float(value), float(rest[0]))
    return requirement == value


def _any_of(value: str, words: list[str]) -> bool:
    """Whether the value is one of ``a <or> b <or> c``.

    After each alternative one word is dropped unseen, as it should be
    another ``<or>``.
    """
    if not words:
        raise ValueError('<or> without an alternative')
    return value in words[::2]
