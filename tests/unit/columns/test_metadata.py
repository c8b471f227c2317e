"""Numbers in the metadata of aggregates."""

from __future__ import annotations

import pytest

from scheduler_service.columns.metadata import least_number
from scheduler_service.model.limits import MAX_NUMBER


@pytest.mark.parametrize(
    ('values', 'expected'),
    [
        ((), 7.0),
        (('3', ' 2 '), 2.0),
        (('2', 'x'), 7.0),
        # NaN is no number, in whatever order the values come.
        (('nan', '2'), 7.0),
        (('2', 'nan'), 7.0),
        # What is too large to calculate with counts as the largest number.
        (('inf',), MAX_NUMBER),
        (('1e308',), MAX_NUMBER),
        (('-inf', '2'), -MAX_NUMBER),
    ],
)
def test_the_least_number_is_finite(values, expected):
    assert least_number(values, 7.0, float) == expected


def test_a_count_of_any_length_is_bounded():
    assert least_number(['9' * 400], 7, int) == MAX_NUMBER
    assert least_number(['9' * 5000], 7, int) == 7
