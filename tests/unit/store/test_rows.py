"""Many rows in one statement."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from scheduler_service.store import clock, rows, schema
from scheduler_service.store.claims import outcomes

COLUMNS = {'number': 'int', 'share': 'float', 'name': 'text'}


@pytest.mark.parametrize(
    'values',
    [
        [],
        [(1, 0.5, 'a')],
        [(2**62, -1e300, 'h\u00f6st "x" \\ \n,{}'), (None, None, None)],
    ],
)
def test_rows_are_read_back_when_packed(store, values):
    source = rows.source('sqlite', COLUMNS)
    with store.reading() as conn:
        found = conn.execute(
            sa.text(f'SELECT number, share, name FROM {source}'),
            rows.pack('sqlite', COLUMNS, values),
        )
        assert [tuple(row) for row in found] == values


def test_statement_takes_two_tables_when_their_parameters_differ(store):
    columns = {'number': 'int'}
    one = rows.source('sqlite', columns, 'first')
    two = rows.source('sqlite', columns, 'second').replace('AS a', 'AS b')
    with store.reading() as conn:
        found = conn.execute(
            sa.text(f'SELECT a.number, b.number FROM {one}, {two}'),
            {
                **rows.pack('sqlite', columns, [(1,)], 'first'),
                **rows.pack('sqlite', columns, [(2,)], 'second'),
            },
        )
        assert [tuple(row) for row in found] == [(1, 2)]


def test_a_parameter_holds_each_column_when_packed_for_postgresql():
    packed = rows.pack('postgresql', COLUMNS, [(1, 0.5, 'a'), (2, 1.5, None)])
    assert packed == {
        'rows_number': [1, 2],
        'rows_share': [0.5, 1.5],
        'rows_name': ['a', None],
    }
    assert rows.source('postgresql', COLUMNS) == (
        'unnest(CAST(:rows_number AS bigint[]), '
        'CAST(:rows_share AS double precision[]), '
        'CAST(:rows_name AS text[])) AS a(number, share, name)'
    )


def test_packed_rows_are_in_the_table_when_inserted(store):
    columns = {'name': 'text', 'value': 'int'}
    with store.engine.begin() as conn:
        rows.insert_packed(conn, 'counters', columns, [('a', 1), ('b', 2)])
        table = schema.counters
        found = conn.execute(
            sa.select(table.c.name, table.c.value)
            .where(table.c.name.in_(['a', 'b']))
            .order_by(table.c.name)
        )
        assert [tuple(row) for row in found] == [('a', 1), ('b', 2)]


def test_delete_counts_rows_when_keys_fill_several_statements(store):
    names = [f'n{number}' for number in range(1100)]
    table = schema.counters
    with store.engine.begin() as conn:
        rows.insert(conn, table, ({'name': n, 'value': 0} for n in names))
        assert rows.delete(conn, table.c.name, [*names, 'none']) == 1100
        assert rows.delete(conn, table.c.name, []) == 0


def test_nothing_is_executed_when_there_is_no_row_to_insert():
    rows.insert(None, schema.counters, [])


def test_document_is_the_same_text_when_keys_come_in_another_order():
    one = rows.document({'b': [1], 'a': 'x', 'empty': [], 'none': None})
    assert one == rows.document({'a': 'x', 'b': [1]}) == '{"a":"x","b":[1]}'


HOSTS = schema.hosts.c


@pytest.mark.parametrize(
    ('dialect', 'text'),
    [
        (postgresql, 'hosts.id = ANY(CAST(%(keys)s AS bigint[]))'),
        (mysql, 'hosts.id IN (__[POSTCOMPILE_keys])'),
        (sqlite, 'hosts.id IN (__[POSTCOMPILE_keys])'),
    ],
)
def test_keys_are_compared_so_that_an_index_is_used(dialect, text):
    """Nothing is compared with the result of the comparison."""
    query = sa.select(HOSTS.id).where(rows.among(HOSTS.id))
    found = str(query.compile(dialect=dialect.dialect()))
    assert found.partition('WHERE ')[2] == text


@pytest.mark.parametrize(
    'query',
    [
        sa.select(HOSTS.id).where(rows.among(HOSTS.id)),
        sa.select(clock.NOW),
        outcomes._keeping(moving=True),
    ],
)
def test_a_statement_is_kept_once_it_is_compiled(query):
    """Compiling takes longer than executing; without a key it is repeated."""
    assert query._generate_cache_key() is not None
