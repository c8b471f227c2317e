"""Uuids for what a request leaves unnamed: random, or of its message."""

from __future__ import annotations

import hashlib
import os
import uuid
from typing import Any

# What a random digit becomes that says of which kind a uuid is.
_VARIANTS = {digit: '89ab'[int(digit, 16) & 3] for digit in '0123456789abcdef'}
_MESSAGES = uuid.UUID('6f0d7e1b-5a83-5d0f-9c52-2f6f3ad1c7e4')


def one(key: str | None, name: object) -> str:
    """Return a random uuid, or the one of a name within a message."""
    if key is None:
        return str(uuid.uuid4())
    return _uuid5(_of_message(key), name)


def several(key: str | None, count: int) -> list[str]:
    """Return uuids as :func:`one` does, named by number.

    Where there are many, one by one takes several times as long.
    """
    if key is not None:
        message = _of_message(key)
        return [_uuid5(message, number) for number in range(count)]
    if count == 1:
        return [str(uuid.uuid4())]
    digits = os.urandom(16 * count).hex()
    return [
        _dashed(digits[at : at + 32], 4) for at in range(0, len(digits), 32)
    ]


def _of_message(key: str) -> Any:
    """Return the hash that the uuids of a message begin with."""
    start = _MESSAGES.bytes + f'{key}/'.encode()
    return hashlib.sha1(start, usedforsecurity=False)


def _uuid5(start: Any, name: object) -> str:
    """Return what ``uuid.uuid5`` does, of a hash that is begun already."""
    whole = start.copy()
    whole.update(str(name).encode())
    return _dashed(whole.hexdigest(), 5)


def _dashed(digits: str, version: int) -> str:
    """Return 32 hexadecimal digits as a uuid of a version."""
    return (
        f'{digits[:8]}-{digits[8:12]}-{version}{digits[13:16]}-'
        f'{_VARIANTS[digits[16]]}{digits[17:20]}-{digits[20:32]}'
    )
