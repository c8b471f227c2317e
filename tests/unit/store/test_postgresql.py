"""Columns in the binary format of PostgreSQL's arrays."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.types.array import ArrayBinaryLoader

from scheduler_service.store import postgresql

COLUMNS = {
    postgresql.IntegerColumn: st.integers(-(2**63), 2**63 - 1),
    postgresql.FloatColumn: st.floats(allow_nan=False),
    # Beside short texts some whose length is not in the table of lengths.
    postgresql.TextColumn: st.one_of(
        st.text(st.characters(codec='utf-8')),
        st.integers(1020, 1030).map(lambda size: '\u00f6' * size),
    ),
}


@pytest.mark.parametrize('kind', COLUMNS, ids=lambda kind: kind.__name__)
@settings(max_examples=30)
@given(data=st.data())
def test_values_are_read_back_when_encoded(kind, data):
    values = data.draw(st.lists(st.none() | COLUMNS[kind]))
    encoded = kind(values).encode()
    assert ArrayBinaryLoader(0).load(encoded) == values


def test_integer_is_refused_when_it_has_more_than_64_bits():
    with pytest.raises((OverflowError, struct.error)):
        postgresql.IntegerColumn([2**63]).encode()


@pytest.mark.parametrize('values', [[1, -2], ['a', 'b'], []])
def test_list_is_encoded_by_its_values_when_it_is_not_a_column(values):
    encoded = postgresql.column(values).encode()
    assert ArrayBinaryLoader(0).load(encoded) == values
