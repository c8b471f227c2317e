"""Finds values of documents that cannot be stored, before they are parsed.

Stateless; any thread may call any function.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service.model.parse_errors import is_too_long, join, written


def check_text(
    document: Any,
    place: str = '',
    fault: type[errors.SchedulerError] = errors.InvalidRequest,
) -> None:
    """Check for text that not every database can store, and for huge numbers.

    That is NUL, lone surrogates, and integers of more digits than Python
    writes. The encoder recognises documents without any, which are nearly
    all, without a walk through them.

    :param place: path of the document in errors
    :raises InvalidRequest: or *fault*, with the path of the value
    """
    try:
        if b'\\u0000' not in msgspec.json.encode(document):
            return
    except RecursionError:
        where = place or 'document'
        raise fault(f'{where}: nested too deeply', at=place) from None
    except (TypeError, ValueError):
        # A lone surrogate or a huge integer, found below; or a type, which
        # parsing rejects.
        pass
    for where, value in _scalars(document, place):
        if isinstance(value, int):
            if is_too_long(value):
                most = sys.get_int_max_str_digits()
                raise fault(
                    f'{where or "document"}: expected an integer of at most '
                    f'{most} digits',
                    at=where,
                )
        elif '\0' in value or any('\ud800' <= c <= '\udfff' for c in value):
            raise fault(
                f'{where}: expected text without NUL and lone surrogates',
                at=where,
            )


def _scalars(document: Any, place: str) -> Iterator[tuple[str, str | int]]:
    """Yield every text and integer, key or value, with its path.

    The path of a key is that of what it is in.
    """
    if isinstance(document, str | int):
        yield place, document
    elif isinstance(document, list):
        for index, item in enumerate(document):
            yield from _scalars(item, f'{place}[{index}]')
    elif isinstance(document, dict):
        for key, item in document.items():
            if isinstance(key, str | int):
                yield place, key
            yield from _scalars(item, join(place, _step(key)))


def _step(key: Any) -> str:
    """Return a key as a part of a path."""
    return written(key, ascii).strip("'")
