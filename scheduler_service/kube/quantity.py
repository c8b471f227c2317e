"""Kubernetes' quantities, exact.

Stateless.
"""

from __future__ import annotations

import decimal
import functools
import re
from decimal import ROUND_UP, Decimal
from typing import Any

_FORM = re.compile(
    r'([+-]?)(\d*)(?:(\.)(\d*))?'
    r'(Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?\d+|[numkMGTPE]?)',
    re.ASCII,
)
_BINARY = {name: Decimal(1024**at) for at, name in enumerate(
    ('', 'Ki', 'Mi', 'Gi', 'Ti', 'Pi', 'Ei')) if at}  # fmt: skip
_DECIMAL = {
    'n': -9, 'u': -6, 'm': -3, '': 0, 'k': 3, 'M': 6, 'G': 9, 'T': 12,
    'P': 15, 'E': 18,
}  # fmt: skip
_FINEST = Decimal('1e-9')
_MAX = 2**63 - 1
_MAX_LENGTH = 80
_WIDE = decimal.Context(prec=200)


class BadQuantity(ValueError):
    """The text is not a quantity."""


def parse(value: Any) -> Decimal:
    """Return the exact value of a quantity in a JSON document.

    Digits beyond 10^-9 are rounded away from zero; a value with a binary
    suffix is limited to 2^63 - 1; null is 0.

    :raises BadQuantity: it is not a quantity
    """
    if value is None:
        return Decimal(0)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadQuantity(f'{value!r} is not a quantity')
    return _parsed(str(value).strip())


@functools.lru_cache(4096)
def _parsed(text: str) -> Decimal:
    """Return the value of a quantity; pods and nodes repeat a few."""
    match = _FORM.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if not text or match is None:
        raise BadQuantity(f'{text[:40]!r} is not a quantity')
    sign, whole, _, fraction, suffix = match.groups()
    number = Decimal(f'{sign}{whole or 0}.{fraction or 0}')
    if suffix in _BINARY:
        number = _WIDE.multiply(number, _BINARY[suffix])
        number = max(min(number, Decimal(_MAX)), Decimal(-_MAX))
    else:
        power = _DECIMAL.get(suffix)
        if power is None:
            power = int(suffix[1:])
            if abs(power) > 60:
                raise BadQuantity(f'{suffix!r} is not within 10^-60 to 10^60')
        number = number.scaleb(power, _WIDE)
    return number.quantize(_FINEST, ROUND_UP, _WIDE)


def whole(value: Any) -> int:
    """Return a quantity in whole units, rounded away from zero.

    :raises BadQuantity: it is not a quantity, or does not fit into 64 bits
    """
    return _fitting(parse(value).to_integral_value(ROUND_UP, _WIDE))


def thousandths(value: Any) -> int:
    """Return a quantity in thousandths, rounded away from zero.

    :raises BadQuantity: it is not a quantity, or does not fit into 64 bits
    """
    times = _WIDE.multiply(parse(value), Decimal(1000))
    return _fitting(times.to_integral_value(ROUND_UP, _WIDE))


def _fitting(number: Decimal) -> int:
    integer = int(number)
    if abs(integer) > _MAX:
        raise BadQuantity(f'{integer} does not fit into 64 bits')
    return integer
