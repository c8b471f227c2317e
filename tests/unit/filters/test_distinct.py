"""A predicate on several columns runs once per combination in use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.columns import DictionaryColumn
from scheduler_service.filters.support.distinct import mask_of_combinations

values = st.integers(0, 3)


@given(st.lists(st.tuples(values, values, values), min_size=1))
def test_a_mask_is_the_predicate_of_each_row(rows):
    seen = []

    def is_odd(*combination):
        seen.append(combination)
        return sum(combination) % 2 == 1

    columns = [
        DictionaryColumn.of(column) for column in zip(*rows, strict=True)
    ]
    mask = mask_of_combinations(columns, is_odd)
    assert mask.tolist() == [sum(row) % 2 == 1 for row in rows]
    assert sorted(seen) == sorted(set(rows))


@pytest.mark.parametrize('count', [1, 3, 1000])
def test_many_distinct_values(count):
    columns = [
        DictionaryColumn.of(range(count)),
        DictionaryColumn.of(range(count, 0, -1)),
        DictionaryColumn.of(range(count)),
    ]
    mask = mask_of_combinations(columns, lambda a, b, c: a + b == count)
    assert mask.all()


def test_values_that_no_row_has_are_left_out():
    column = DictionaryColumn.of(['a', 'b']).take([0])
    assert mask_of_combinations([column], {'a': True}.__getitem__).all()
