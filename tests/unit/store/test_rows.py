"""Many rows in one statement."""

import pytest
import sqlalchemy as sa

from scheduler_service.store import rows, schema

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


def test_document_is_the_same_text_when_keys_come_in_another_order():
    one = rows.document({'b': [1], 'a': 'x', 'empty': [], 'none': None})
    assert one == rows.document({'a': 'x', 'b': [1]}) == '{"a":"x","b":[1]}'
