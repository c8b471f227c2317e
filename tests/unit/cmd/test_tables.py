"""Tables: columns line up, whatever is in their cells."""

from __future__ import annotations

from scheduler_service.cmd import tables

ROWS = [
    {'name': 'a', 'count': 5, 'note': None},
    {'name': 'longer', 'count': 12, 'note': 'two words'},
]


def test_numbers_are_on_the_right_and_the_rest_on_the_left():
    assert list(tables.lines(ROWS, ['name', 'count', 'note'])) == [
        'name    count  note',
        '------  -----  ---------',
        'a           5',
        'longer     12  two words',
    ]


def test_a_table_without_rows_is_its_heading():
    assert list(tables.lines([], ['free_mb'])) == ['free mb', '-------']


def test_cells_are_folded_where_the_width_is_limited():
    rows = [{'name': 'host', 'reason': 'it is being replaced by another'}]
    found = list(tables.lines(rows, ['name', 'reason'], 20))
    assert max(map(len, found)) <= 20
    assert found[2:] == [
        'host  it is being',
        '      replaced by',
        '      another',
    ]


def test_a_word_that_is_too_long_is_cut():
    assert tables.folded('abcdefgh', 3) == ['abc', 'def', 'gh']


def test_wide_characters_take_two_places():
    rows = [{'name': '日本', 'x': 'a'}, {'name': 'abcd', 'x': 'b'}]
    assert list(tables.lines(rows, ['name', 'x']))[2:] == [
        '日本  a',
        'abcd  b',
    ]


def test_control_characters_are_not_sent_to_the_terminal():
    assert tables.cell('a\x1b[2Jb\nc') == r'a\x1b[2Jb\nc'


def test_values_are_text():
    assert tables.cell(None) == ''
    assert tables.cell(True) == 'yes'
    assert tables.cell(0.1230001) == '0.123'
    assert tables.cell({'a': [1, 2]}) == 'a=1, 2'


def test_characters_that_turn_the_direction_are_not_sent_either():
    assert tables.cell('a\u202eb\u2066c\u2028') == 'a\\u202eb\\u2066c\\u2028'
