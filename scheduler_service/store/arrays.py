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
        return head + b''.join(self._parts(obj))

    @abc.abstractmethod
    def _parts(self, column: Column) -> list[bytes]:
        """Return each value after its length."""


class _TextsDumper(_ColumnDumper):
    oid = 1009
    element = 25

    def _parts(self, column: Column) -> list[bytes]:
        encoded = [
            None if one is None else one.encode('utf-8') for one in column
        ]
        return [
            _NULL if one is None else _length(len(one)) + one
            for one in encoded
        ]


class _WholesDumper(_ColumnDumper):
    oid = 1016
    element = 20

    def _parts(self, column: Column) -> list[bytes]:
        return _fixed('>iq', column)


class _FloatsDumper(_ColumnDumper):
    oid = 1022
    element = 701

    def _parts(self, column: Column) -> list[bytes]:
        return _fixed('>id', column)


def _fixed(form: str, column: Column) -> list[bytes]:
    """Return values of 8 bytes each."""
    pack = struct.Struct(form).pack
    return [_NULL if one is None else pack(8, one) for one in column]


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
