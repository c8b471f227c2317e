"""Many rows in one statement."""

from scheduler_service.store import rows, schema


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
