"""Columns in the binary format of PostgreSQL's arrays."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.types.array import ArrayBinaryLoader

from scheduler_service.store import pg_arrays

COLUMNS = {
    pg_arrays.IntegerColumn: st.integers(-(2**63), 2**63 - 1),
    pg_arrays.FloatColumn: st.floats(allow_nan=False),
    # Beside short texts some whose length is not in the table of lengths.
    pg_arrays.TextColumn: st.one_of(
        st.text(st.characters(codec='utf-8')),
        st.integers(1020, 1030).map(lambda size: '\u00f6' * size),
    ),
}


@pytest.mark.parametrize('kind', COLUMNS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_values_are_read_back_when_encoded(kind, data):
    values = data.draw(st.lists(st.none() | COLUMNS[kind]))
    encoded = pg_arrays.encode(kind(values))
    assert ArrayBinaryLoader(0).load(encoded) == values


def test_integer_is_refused_when_it_has_more_than_64_bits():
    with pytest.raises((OverflowError, struct.error)):
        pg_arrays.encode(pg_arrays.IntegerColumn([2**63]))
