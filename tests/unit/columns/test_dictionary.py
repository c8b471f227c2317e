"""Columns of codes into a dictionary of values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.columns import DictionaryColumn
from scheduler_service.columns.dictionary import combinations

WORDS = st.sampled_from(['a', 'b', 'c', 'd', None])


@given(st.lists(WORDS), st.lists(WORDS))
def test_values_follow_each_other_when_columns_are_concatenated(one, two):
    joined = DictionaryColumn.of(one).concat(DictionaryColumn.of(two))
    assert [joined.at(row) for row in range(len(joined.codes))] == one + two
    assert joined.mask_where(lambda value: value == 'a').tolist() == [
        value == 'a' for value in one + two
    ]


@given(st.lists(WORDS), st.lists(st.booleans()), st.lists(WORDS))
def test_a_value_is_forgotten_when_no_row_has_it(items, kept, others):
    column = DictionaryColumn.of(items)
    rows = np.flatnonzero(kept[: len(items)])
    joined = column.take(rows).concat(DictionaryColumn.of(others))
    expected = [items[row] for row in rows] + others
    assert [joined.at(row) for row in range(len(joined.codes))] == expected
    assert sorted(map(str, joined.values)) == sorted(map(str, {*expected}))
    assert all(joined.code(one) >= 0 for one in expected)


def test_values_do_not_pile_up_when_one_row_changes_often():
    column = DictionaryColumn.of(['a', 'b', 'c'])
    for number in range(1000):
        changed = DictionaryColumn.of([f'value {number}'])
        column = column.take(np.array([0, 1])).concat(changed)
    assert column.values == ('a', 'b', 'value 999')


@given(st.lists(st.integers(0, 40), min_size=1), st.sets(st.integers(0, 40)))
def test_a_mask_is_the_predicate_of_each_row(items, accepted):
    mask = DictionaryColumn.of(items).mask_where(accepted.__contains__)
    assert mask.tolist() == [item in accepted for item in items]


@pytest.mark.parametrize('count', [1, 31, 32, 33, 100])
@pytest.mark.parametrize('accepted', [0, 1, 16, 32, 100])
def test_masks_of_any_number_of_values(count, accepted):
    column = DictionaryColumn.of(range(count))
    mask = column.mask_where(lambda value: value < accepted)
    assert mask.tolist() == [value < accepted for value in range(count)]


values = st.integers(0, 3)


@given(st.lists(st.tuples(values, values, values), min_size=1))
def test_combinations_are_the_rows_each_once(rows):
    columns = [
        DictionaryColumn.of(column) for column in zip(*rows, strict=True)
    ]
    assert seen(columns) == (rows, sorted(set(rows)))


def seen(columns):
    """Return the values of each row, and the combinations, sorted."""
    codes, combination = combinations(columns)
    values = [
        tuple(c.values[code] for c, code in zip(columns, some, strict=True))
        for some in zip(*codes, strict=True)
    ]
    return [values[at] for at in combination], sorted(values)
