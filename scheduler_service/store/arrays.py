"""Columns of many rows as PostgreSQL's own arrays, in its binary form.

The driver can send lists too, at about a microsecond for each element; a
claim in a batch has some thirty.
"""

from __future__ import annotations

import abc
import struct
from typing import Any

from psycopg import pq
from psycopg.adapt import Dumper

_header = struct.Struct('>5i').pack
_length = struct.Struct('>i').pack
_NULL = _length(-1)
_SHORT = 1024
_LENGTHS = [_length(size) for size in range(_SHORT)]


class Column(list[Any]):
    """The values of one column, all of one type or None."""


class Texts(Column):
    """Text."""


class Wholes(Column):
    """Whole numbers of 64 bits."""


class Floats(Column):
    """Numbers with a fraction."""


class _ColumnDumper(Dumper):
    """Sends a column: a header, then each value after its length.

    :cvar element: the type of its values, as the server numbers it
    """

    format = pq.Format.BINARY
    element = 0

    def dump(self, obj: Any) -> bytes:
        """Return the array."""
        if not obj:
            return _header(0, 0, self.element, 0, 1)[:12]
        has_null = int(None in obj)
        head = _header(1, has_null, self.element, len(obj), 1)
        return head + self._body(obj)

    @abc.abstractmethod
    def _body(self, column: Column) -> bytes:
        """Return each value after its length."""


class _TextsDumper(_ColumnDumper):
    oid = 1009
    element = 25

    def _body(self, column: Column) -> bytes:
        parts: list[bytes] = []
        add = parts.append
        for one in column:
            if one is None:
                add(_NULL)
            else:
                encoded = one.encode()
                size = len(encoded)
                add(_LENGTHS[size] if size < _SHORT else _length(size))
                add(encoded)
        return b''.join(parts)


class _WholesDumper(_ColumnDumper):
    oid = 1016
    element = 20

    def _body(self, column: Column) -> bytes:
        return _fixed('q', column)


class _FloatsDumper(_ColumnDumper):
    oid = 1022
    element = 701

    def _body(self, column: Column) -> bytes:
        return _fixed('d', column)


def _fixed(form: str, column: Column) -> bytes:
    """Return values of 8 bytes each."""
    if None in column:
        pack = struct.Struct(f'>i{form}').pack
        return b''.join(
            _NULL if one is None else pack(8, one) for one in column
        )
    count = len(column)
    with_lengths = [8] * (2 * count)
    with_lengths[1::2] = column
    return struct.pack('>' + f'i{form}' * count, *with_lengths)


def register(dbapi_conn: Any) -> None:
    """Let a connection of the driver take columns."""
    for kind, dumper in _DUMPERS.items():
        dbapi_conn.adapters.register_dumper(kind, dumper)


_DUMPERS: dict[type[Column], Any] = {
    Texts: _TextsDumper,
    Wholes: _WholesDumper,
    Floats: _FloatsDumper,
}


def encoded(column: Column) -> bytes:
    """Return a column as the server takes it in binary form."""
    kind = type(column)
    found: bytes = _DUMPERS[kind](kind).dump(column)
    return found


OF_KIND = {'text': Texts, 'int': Wholes, 'float': Floats}
