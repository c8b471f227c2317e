"""Quantities as Kubernetes writes them: exact, never floats."""

from __future__ import annotations

import decimal
import re
from decimal import ROUND_UP, Decimal
from typing import Any

_FORM = re.compile(
    r'([+-]?)(\d*)(?:(\.)(\d*))?'
    r'(Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?\d+|[numkMGTPE]?)',
    re.ASCII,
)
_BINARY = {name: 1024**at for at, name in enumerate(
    ('', 'Ki', 'Mi', 'Gi', 'Ti', 'Pi', 'Ei')) if at}  # fmt: skip
_DECIMAL = {
    'n': -9, 'u': -6, 'm': -3, '': 0, 'k': 3, 'M': 6, 'G': 9, 'T': 12,
    'P': 15, 'E': 18,
}  # fmt: skip
_FINEST = Decimal('1e-9')
_CAP = 2**63 - 1
_LONGEST = 80
_WIDE = decimal.Context(prec=200)


class BadQuantity(ValueError):
    """The text is no quantity."""


def parse(value: Any) -> Decimal:
    """Return a quantity of a JSON document, exactly.

    Finer than 10^-9 is rounded away from zero; a binary value is capped at
    2^63 - 1; null is 0.

    :raises BadQuantity: it is none
    """
    if value is None:
        return Decimal(0)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadQuantity(f'{value!r} is no quantity')
    text = str(value).strip()
    match = _FORM.fullmatch(text) if len(text) <= _LONGEST else None
    if not text or match is None:
        raise BadQuantity(f'{text[:40]!r} is no quantity')
    sign, whole, _, fraction, suffix = match.groups()
    number = Decimal(f'{sign}{whole or 0}.{fraction or 0}')
    number = _WIDE.multiply(number, _factor(suffix))
    if suffix in _BINARY:
        number = max(min(number, Decimal(_CAP)), Decimal(-_CAP))
    return number.quantize(_FINEST, ROUND_UP, _WIDE)


def _factor(suffix: str) -> Decimal:
    if suffix in _BINARY:
        return Decimal(_BINARY[suffix])
    if suffix in _DECIMAL:
        return Decimal(10) ** _DECIMAL[suffix]
    power = int(suffix[1:])
    if abs(power) > 60:
        raise BadQuantity(f'{suffix!r} is out of reach')
    return Decimal(10) ** power


def whole(value: Any) -> int:
    """Return a quantity in whole units, rounded away from zero.

    :raises BadQuantity: it is none, or does not fit in 64 bits
    """
    return _fitting(parse(value).to_integral_value(ROUND_UP, _WIDE))


def thousandths(value: Any) -> int:
    """Return a quantity in thousandths, rounded away from zero.

    :raises BadQuantity: it is none, or does not fit in 64 bits
    """
    times = _WIDE.multiply(parse(value), Decimal(1000))
    return _fitting(times.to_integral_value(ROUND_UP, _WIDE))


def _fitting(number: Decimal) -> int:
    found = int(number)
    if abs(found) > _CAP:
        raise BadQuantity(f'{found} does not fit in 64 bits')
    return found
