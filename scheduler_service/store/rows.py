"""Many rows in one statement, on three databases.

Rows travel as one parameter that the database itself unfolds, or, with
PostgreSQL, one for each column: one statement, one round trip, one cached
plan, however many rows there are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler_service.store.connection import in_chunks

_CHUNK = 500
POSTGRESQL = {'int': 'bigint', 'float': 'double precision', 'text': 'text'}
_PATHS = {
    'int': 'BIGINT',
    'float': 'DOUBLE',
    'text': 'LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin',
}
_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order='deterministic').encode


def dialect_of(conn: Connection) -> str:
    """Return the name of the SQL that a connection's database speaks."""
    name = conn.dialect.name
    return 'mysql' if name == 'mariadb' else name


def source(
    dialect: str, columns: Mapping[str, str], parameter: str = 'rows'
) -> str:
    """Return SQL for the rows that :func:`pack` packs, named ``a``.

    :param columns: name -> int, float or text
    :param parameter: its name, where a statement has several such rows
    """
    if dialect == 'postgresql':
        told = ', '.join(
            f'CAST(:{parameter}_{name} AS {POSTGRESQL[kind]}[])'
            for name, kind in columns.items()
        )
        return f'unnest({told}) AS a({", ".join(columns)})'
    if dialect == 'mysql':
        told = ', '.join(
            f"{n} {_PATHS[kind]} PATH '$.{n}'" for n, kind in columns.items()
        )
        return f"JSON_TABLE(:{parameter}, '$[*]' COLUMNS ({told})) AS a"
    told = ', '.join(
        f"json_extract(value, '$.{name}') AS {name}" for name in columns
    )
    # No caller's text gets in here: names are the ones in our own code.
    return f'(SELECT {told} FROM json_each(:{parameter})) AS a'  # noqa: S608


def insert_packed(
    conn: Connection,
    table: str,
    columns: Mapping[str, str],
    values: Sequence[Sequence[Any]],
) -> None:
    """Insert rows in one statement.

    :param columns: name -> int, float or text
    :param values: rows, each in the order of the columns
    """
    dialect = dialect_of(conn)
    statement = _inserting(dialect, table, tuple(columns.items()))
    conn.execute(statement, pack(dialect, columns, values))


@functools.cache
def _inserting(
    dialect: str, table: str, columns: tuple[tuple[str, str], ...]
) -> Any:
    names = ', '.join(name for name, _ in columns)
    return sa.text(
        f'INSERT INTO {table} ({names}) '  # noqa: S608
        f'SELECT {names} FROM {source(dialect, dict(columns))}'
    )


def pack(
    dialect: str,
    columns: Mapping[str, str],
    values: Sequence[Sequence[Any]],
    parameter: str = 'rows',
) -> dict[str, Any]:
    """Return rows as the parameters of a statement with their source.

    :param values: rows, each in the order of the columns
    """
    if dialect != 'postgresql':
        named = [dict(zip(columns, row, strict=True)) for row in values]
        return {parameter: _encode(named).decode()}
    from scheduler_service.store import arrays

    by_column = zip(*values, strict=True) if values else [()] * len(columns)
    return {
        f'{parameter}_{name}': arrays.OF_KIND[kind](column)
        for (name, kind), column in zip(
            columns.items(), by_column, strict=True
        )
    }


def document(values: Mapping[str, Any]) -> str:
    """Return the JSON of what a row keeps beside its columns: no empties."""
    kept = {name: value for name, value in values.items() if value}
    return _encode_sorted(kept).decode()


def insert(
    conn: Connection, table: Any, values: Iterable[Mapping[str, Any]]
) -> None:
    """Insert rows, in as few statements as the driver can."""
    listed = list(values)
    if listed:
        conn.execute(sa.insert(table), listed)


def delete(conn: Connection, column: Any, keys: Sequence[Any]) -> int:
    """Delete the rows whose column is one of *keys*; return how many."""
    gone = 0
    for part in in_chunks(keys, _CHUNK):
        query = sa.delete(column.table).where(column.in_(part))
        gone += conn.execute(query).rowcount
    return gone
