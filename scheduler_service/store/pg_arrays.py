"""Columns of many rows as PostgreSQL arrays, in its binary format.

Stateless: any thread may call it. psycopg can send Python lists as well, but
takes about a microsecond for each element; a claim in a batch has some
thirty.
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


class TextColumn(Column):
    """A column of ``text``."""


class IntegerColumn(Column):
    """A column of ``bigint``."""


class FloatColumn(Column):
    """A column of ``double precision``."""


class _ColumnDumper(Dumper):
    """Encodes a column: a header, then each value after its length.

    :cvar element: the type of the values, as the server numbers it
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


class _TextDumper(_ColumnDumper):
    oid = 1009
    element = 25

    def _body(self, column: Column) -> bytes:
        parts: list[bytes] = []
        add = parts.append
        for value in column:
            if value is None:
                add(_NULL)
            else:
                encoded = value.encode()
                size = len(encoded)
                add(_LENGTHS[size] if size < _SHORT else _length(size))
                add(encoded)
        return b''.join(parts)


class _IntegerDumper(_ColumnDumper):
    oid = 1016
    element = 20

    def _body(self, column: Column) -> bytes:
        return _fixed('q', column)


class _FloatDumper(_ColumnDumper):
    oid = 1022
    element = 701

    def _body(self, column: Column) -> bytes:
        return _fixed('d', column)


def _fixed(form: str, column: Column) -> bytes:
    """Return values of 8 bytes each, each after its length."""
    if None in column:
        pack = struct.Struct(f'>i{form}').pack
        return b''.join(
            _NULL if value is None else pack(8, value) for value in column
        )
    count = len(column)
    with_lengths = [8] * (2 * count)
    with_lengths[1::2] = column
    return struct.pack('>' + f'i{form}' * count, *with_lengths)


_DUMPERS: dict[type[Column], Any] = {
    TextColumn: _TextDumper,
    IntegerColumn: _IntegerDumper,
    FloatColumn: _FloatDumper,
}


def register(dbapi_conn: Any) -> None:
    """Let a connection of psycopg take columns as parameters."""
    for kind, dumper in _DUMPERS.items():
        dbapi_conn.adapters.register_dumper(kind, dumper)


def encode(column: Column) -> bytes:
    """Return a column as the server takes it in binary format."""
    kind = type(column)
    encoded: bytes = _DUMPERS[kind](kind).dump(column)
    return encoded


BY_TYPE = {'text': TextColumn, 'int': IntegerColumn, 'float': FloatColumn}
