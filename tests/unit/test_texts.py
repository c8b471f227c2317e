"""Values as texts, and CSV that no program takes for formulas."""

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
