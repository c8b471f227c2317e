"""Many rows in one statement, on each database; no table of its own.

Rows are sent as one JSON parameter that the database expands, or on PostgreSQL
as one array for each column: one statement, one round trip and one cached
plan, however many rows there are.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from scheduler_service.store import clock
from scheduler_service.store.connection import in_chunks

POSTGRESQL = {'int': 'bigint', 'float': 'double precision', 'text': 'text'}
_PATHS = {
    'int': 'BIGINT',
    'float': 'DOUBLE',
    'text': 'LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin',
}
_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order='deterministic').encode


def source(
    dialect: str, columns: Mapping[str, str], parameter: str = 'rows'
) -> str:
    """Return SQL for a table ``a`` of the rows that :func:`pack` encodes.

    :param columns: name -> int, float or text
    :param parameter: the parameter's name, for a statement with several
        such tables
    """
    if dialect == 'postgresql':
        expressions = ', '.join(
            f'CAST(:{parameter}_{name} AS {POSTGRESQL[kind]}[])'
            for name, kind in columns.items()
        )
        return f'unnest({expressions}) AS a({", ".join(columns)})'
    if dialect == 'mysql':
        expressions = ', '.join(
            f"{n} {_PATHS[kind]} PATH '$.{n}'" for n, kind in columns.items()
        )
        return f"JSON_TABLE(:{parameter}, '$[*]' COLUMNS ({expressions})) AS a"
    expressions = ', '.join(
        f"json_extract(value, '$.{name}') AS {name}" for name in columns
    )
    # Column names are constants of this package, never a caller's text.
    return f'(SELECT {expressions} FROM json_each(:{parameter})) AS a'  # noqa: S608


def joined(
    dialect: str, table: str, alias: str, key: Mapping[str, str]
) -> str:
    """Return SQL that joins a table, looked up by its key for each row.

    PostgreSQL and MariaDB plan it like that, whatever they estimate.

    :param key: column -> SQL that it is equal to
    """
    if dialect == 'postgresql':
        return (
            f'CROSS JOIN LATERAL (SELECT * FROM {table} '  # noqa: S608
            f'WHERE {equal(dialect, key)} OFFSET 0) AS {alias}'
        )
    join = 'STRAIGHT_JOIN' if dialect == 'mysql' else 'JOIN'
    same = {f'{alias}.{name}': value for name, value in key.items()}
    return f'{join} {table} AS {alias} ON {equal(dialect, same)}'


def equal(dialect: str, key: Mapping[str, str]) -> str:
    """Return SQL by which PostgreSQL looks rows up one by one.

    In this form it can join neither by hashing nor by sorting.

    :param key: column -> SQL that it is equal to
    """
    form = '{} = ANY(ARRAY[{}])' if dialect == 'postgresql' else '{} = {}'
    return ' AND '.join(form.format(*pair) for pair in key.items())


def insert_packed(
    conn: Connection,
    table: str,
    columns: Mapping[str, str],
    values: Sequence[Sequence[Any]],
    stamp: str | None = None,
    key: Sequence[str] = (),
) -> int:
    """Insert rows in one statement.

    If another transaction is about to insert or delete a key, it waits.

    :param columns: name -> int, float or text
    :param values: rows, each in the order of the columns
    :param stamp: one more column, which gets the database's time
    :param key: columns of the table's key, where rows may be stored already
        and are then replaced; empty: that is an error
    :return: how many rows were inserted, where the key is all there is
    """
    dialect = conn.dialect.name
    statement = inserting(
        dialect, table, tuple(columns.items()), stamp, tuple(key)
    )
    return conn.execute(statement, pack(dialect, columns, values)).rowcount


@functools.cache
def inserting(
    dialect: str,
    table: str,
    columns: tuple[tuple[str, str], ...],
    stamp: str | None,
    key: tuple[str, ...] = (),
) -> sa.TextClause:
    """Return the statement of :func:`insert_packed`."""
    names = [name for name, _ in columns]
    stamped, now = ([stamp], [clock.sql(dialect)]) if stamp else ([], [])
    verb, conflict = 'INSERT', ''
    changed = [n for n in names + stamped if n not in key]
    if key and dialect == 'mysql':
        verb = 'INSERT' if changed else 'INSERT IGNORE'
        conflict = 'ON DUPLICATE KEY UPDATE ' if changed else ''
        conflict += ', '.join(f'{name} = VALUES({name})' for name in changed)
    elif key:
        # The condition tells SQLite that no join follows.
        conflict = f'WHERE 1 = 1 ON CONFLICT ({", ".join(key)}) DO '
        conflict += 'UPDATE SET ' if changed else 'NOTHING'
        conflict += ', '.join(f'{name} = excluded.{name}' for name in changed)
    return sa.text(
        f'{verb} INTO {table} ({", ".join(names + stamped)}) '  # noqa: S608
        f'SELECT {", ".join(names + now)} '
        f'FROM {source(dialect, dict(columns))} {conflict}'
    )


def pack(
    dialect: str,
    columns: Mapping[str, str],
    values: Sequence[Sequence[Any]],
    parameter: str = 'rows',
) -> dict[str, Any]:
    """Return the parameters of a statement with the SQL of :func:`source`.

    :param values: rows, each in the order of the columns
    """
    if dialect != 'postgresql':
        named = [dict(zip(columns, row, strict=True)) for row in values]
        return {parameter: _encode(named).decode()}
    from scheduler_service.store.postgresql import ARRAY_TYPES

    by_column = zip(*values, strict=True) if values else [()] * len(columns)
    return {
        f'{parameter}_{name}': ARRAY_TYPES[kind](column)
        for (name, kind), column in zip(
            columns.items(), by_column, strict=True
        )
    }


def among(column: Any) -> Any:
    """Return the condition that a column is one of the parameter ``keys``.

    For statements that are built once: building takes four times as long as
    executing.
    """
    return _Among(column, sa.bindparam('keys'))


class _Among(FunctionElement[Any]):
    """A column, and the parameter of the values that it may have.

    It is not typed as a truth value: databases without these would compare
    it with 1, and then not use the column's index.
    """

    inherit_cache = True


@compiles(_Among)
def _listed(element: _Among, compiler: Any, **how: Any) -> str:
    """Return SQL with as many parameters as there are values."""
    column, _ = element.clauses
    listed = column.in_(sa.bindparam('keys', expanding=True))
    text: str = compiler.process(listed, **how)
    return text


@compiles(_Among, 'postgresql')
def _in_array(element: _Among, compiler: Any, **how: Any) -> str:
    """Return SQL with one parameter, the same however many values there are.

    A statement of another text would be parsed and prepared again.
    """
    column, keys = element.clauses
    kind = 'int' if isinstance(column.type, sa.Integer) else 'text'
    name, values = (compiler.process(side, **how) for side in (column, keys))
    return f'{name} = ANY(CAST({values} AS {POSTGRESQL[kind]}[]))'


def document(values: Mapping[str, Any]) -> str:
    """Return JSON for a row's ``document`` column, without empty values."""
    filled = {name: value for name, value in values.items() if value}
    return _encode_sorted(filled).decode()


def insert(
    conn: Connection, table: Any, values: Iterable[Mapping[str, Any]]
) -> None:
    """Insert rows; no rows: no statement."""
    if listed := list(values):
        conn.execute(sa.insert(table), listed)


def update(
    conn: Connection, table: Any, key: str, values: Sequence[Mapping[str, Any]]
) -> None:
    """Write the same columns of each row; no rows: no statement.

    :param key: the column by which a row is found; each has a value of it
    """
    if not values:
        return
    # Parameters have other names than all columns.
    bound: dict[str, Any] = {n: sa.bindparam(f'b_{n}') for n in values[0]}
    by_key = table.c[key] == bound.pop(key)
    conn.execute(
        sa.update(table).where(by_key).values(bound),
        [{f'b_{name}': value for name, value in r.items()} for r in values],
    )


def insert_missing(
    conn: Connection, table: Any, values: Mapping[str, Any]
) -> bool:
    """Insert a row unless its key is stored; return whether it was inserted.

    If another transaction is about to insert the key, the statement waits.
    """
    dialect = conn.dialect.name
    statement: Any
    if dialect == 'mysql':
        statement = sa.insert(table).prefix_with('IGNORE')
    else:
        # Of the dialect that the connection has loaded.
        of = importlib.import_module(f'sqlalchemy.dialects.{dialect}')
        statement = of.insert(table).on_conflict_do_nothing()
    # Without the option SQLAlchemy drops the count of an INSERT.
    statement = statement.values(values)
    counting = statement.execution_options(preserve_rowcount=True)
    return conn.execute(counting).rowcount > 0


def select_in(
    conn: Connection, query: Any, column: Any, keys: Iterable[Any]
) -> list[Any]:
    """Return the rows of a query whose *column* is in *keys*."""
    selected: list[Any] = []
    for part in in_chunks(keys):
        selected += conn.execute(query.where(column.in_(part)))
    return selected


def select_among(
    conn: Connection, query: Any, keys: Iterable[Any]
) -> list[Any]:
    """Return the rows of a query with :func:`among` these keys."""
    selected: list[Any] = []
    for part in in_chunks(keys):
        selected += conn.execute(query, {'keys': part})
    return selected


def delete_packed(
    conn: Connection,
    table: str,
    columns: Mapping[str, str],
    keys: Sequence[Sequence[Any]],
    where: str = '1 = 1',
) -> None:
    """Delete rows by keys, which are looked up one after the other.

    No other row is read, and so none is waited for.

    :param columns: name -> int, float or text
    :param keys: each in the order of the columns
    :param where: SQL for a condition on other columns
    """
    dialect = conn.dialect.name
    statement = _deleting(dialect, table, tuple(columns.items()), where)
    conn.execute(statement, pack(dialect, columns, keys))


@functools.cache
def _deleting(
    dialect: str, table: str, columns: tuple[tuple[str, str], ...], where: str
) -> sa.TextClause:
    named = dict(columns)
    keys = source(dialect, named)
    if dialect == 'sqlite':
        names = ', '.join(named)
        return sa.text(
            f'DELETE FROM {table} WHERE ({names}) IN '  # noqa: S608
            f'(SELECT {names} FROM {keys}) AND {where}'
        )
    same = equal(dialect, {f'h.{name}': f'a.{name}' for name in named})
    if dialect == 'mysql':
        return sa.text(
            f'DELETE h FROM {keys} STRAIGHT_JOIN {table} AS h '
            f'ON {same} WHERE {where}'
        )
    return sa.text(
        f'DELETE FROM {table} AS h USING {keys} WHERE {same} AND {where}'  # noqa: S608
    )


def delete(conn: Connection, column: Any, keys: Sequence[Any]) -> int:
    """Delete the rows whose *column* is in *keys*; return how many."""
    deleted = 0
    for part in in_chunks(keys):
        query = sa.delete(column.table).where(column.in_(part))
        deleted += conn.execute(query).rowcount
    return deleted
