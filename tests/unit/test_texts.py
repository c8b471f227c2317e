"""Values as texts, and CSV that no program takes for formulas."""

import pytest

from scheduler_service import texts


def test_control_characters_are_not_sent_to_the_terminal():
    assert texts.cell('a\x1b[2Jb\nc') == r'a\x1b[2Jb\nc'


def test_values_are_text():
    assert texts.cell(None) == ''
    assert texts.cell(True) == 'yes'
    assert texts.cell(0.1230001) == '0.123'
    assert texts.cell({'a': [1, 2]}) == 'a=1, 2'


def test_characters_that_turn_the_direction_are_not_sent_either():
    assert texts.cell('a\u202eb\u2066c\u2028') == 'a\\u202eb\\u2066c\\u2028'


def test_csv_has_no_formulas_and_numbers_stay():
    rows = [{'a': '=1', 'b': -1}, {'a': ['@x', 'y'], 'b': '-x'}]
    assert texts.csv_table(rows, ['a', 'b']) == (
        "a,b\n'=1,-1\n\"'@x, y\",'-x\n"
    )


@pytest.mark.parametrize(
    'first', [*'=+-@\uff1d\uff0b\uff0d\uff20\ufe62\ufe66\ufe6b', ' =']
)
def test_no_form_of_a_character_begins_a_formula(first):
    assert texts.csv_cell(f'{first}1').startswith("'")
    assert texts.csv_cell(f'a{first}1')[0] == 'a'
