"""Lists: their columns, order, rows and format; tables that line up."""

import argparse
import json
import os
import subprocess
import sys

import pytest

from scheduler_service.cmd import output

ROWS = [
    {'host': 'b', 'used': 2, 'zone': None},
    {'host': 'a, c', 'used': 10, 'zone': 'north'},
    {'host': 'd', 'used': 2, 'zone': 'east'},
]
TABLE = [
    {'name': 'a', 'count': 5, 'note': None},
    {'name': 'longer', 'count': 12, 'note': 'two words'},
]


def printed(capsys, form='value', rows=ROWS, **options):
    defaults = {'columns': [], 'sort': [], 'limit': 0}
    args = argparse.Namespace(format=form, **{**defaults, **options})
    output.listing(rows, ['host', 'used'], args)
    return capsys.readouterr().out


def test_columns_are_those_that_are_asked_for(capsys):
    assert (
        printed(capsys, columns=['zone,host'], limit=2) == ' b\nnorth a, c\n'
    )
    assert json.loads(printed(capsys, 'json', columns=['used'])) == [
        {'used': 2},
        {'used': 10},
        {'used': 2},
    ]


def test_json_has_all_columns_unless_asked_otherwise(capsys):
    assert json.loads(printed(capsys, 'json')) == ROWS


@pytest.mark.parametrize(
    ('sort', 'expected'),
    [
        (['used:desc'], ['a, c', 'b', 'd']),
        (['used,host:desc'], ['d', 'b', 'a, c']),
        (['zone'], ['d', 'a, c', 'b']),
        (['zone:desc'], ['a, c', 'd', 'b']),
    ],
)
def test_rows_are_sorted_with_empty_cells_last(capsys, sort, expected):
    found = printed(capsys, columns=['host'], sort=sort)
    assert found.splitlines() == expected


@pytest.mark.parametrize(
    ('value', 'known', 'told'),
    [
        ('nroth', ['south', 'north'],
         '; there are north, south; is north meant?\n'),
        ('x\x1b', [], 'x\\x1b: nothing matches; there are none\n'),
        ('x', [f'z{n:02}' for n in range(30)], 'z19 and 10 more\n'),
    ],
)  # fmt: skip
def test_a_value_that_nothing_has_is_told_with_those_there_are(
    capsys, value, known, told
):
    output.nothing_matches('--zone', value, known)
    printed = capsys.readouterr()
    assert printed.out == ''
    assert printed.err.startswith('--zone ')
    assert printed.err.endswith(told)
    assert printed.err.count('\n') == 1


def test_no_value_is_meant_where_comparing_them_takes_long(capsys):
    known = [f'compute-{n}' for n in range(200_000)]
    output.nothing_matches('--host', 'compte-1', known)
    assert capsys.readouterr().err.endswith(' and 199980 more\n')


def test_the_limit_counts_after_sorting(capsys):
    found = printed(capsys, columns=['host'], sort=['used:desc'], limit=1)
    assert found == 'a, c\n'
    assert len(printed(capsys, limit=0).splitlines()) == 3


def test_csv_quotes_what_has_commas(capsys):
    found = printed(capsys, 'csv')
    assert found == 'host,used\nb,2\n"a, c",10\nd,2\n'


def test_a_list_without_rows_is_a_heading_or_nothing(capsys):
    assert printed(capsys, 'value', []) == ''
    assert printed(capsys, 'csv', []) == 'host,used\n'
    assert json.loads(printed(capsys, 'json', [])) == []


def test_a_title_cannot_move_the_cursor_of_a_terminal(capsys):
    output.table([{'a': 1}], ['a'], title='Request x\n2026 \x1b[31m')
    assert capsys.readouterr().out.startswith('Request x\\n2026 \\x1b[31m\n')


@pytest.mark.parametrize(('value', 'styled'), [('1', False), (None, True)])
def test_a_terminal_gets_no_styles_where_nobody_wants_them(
    capsys, monkeypatch, value, styled
):
    monkeypatch.setattr(sys.stdout, 'isatty', lambda: True)
    monkeypatch.delenv('NO_COLOR', raising=False)
    if value:
        monkeypatch.setenv('NO_COLOR', value)
    output.say('text', 'bold')
    assert ('\x1b' in capsys.readouterr().out) is styled


def test_documents_are_in_utf_8_whatever_the_terminal_knows():
    program = (
        'from scheduler_service.cmd import output; '
        'output.say("before"); '
        'output.document({"a": "gr\\u00fcn\\u65e5"}, "json")'
    )
    done = subprocess.run(
        [sys.executable, '-c', program],
        capture_output=True, timeout=60, check=True,
        env={**os.environ, 'PYTHONIOENCODING': 'ascii'},
    )  # fmt: skip
    first, document = done.stdout.split(b'\n', 1)
    assert first == b'before'
    assert json.loads(document) == {'a': 'gr\u00fcn\u65e5'}


def test_numbers_are_on_the_right_and_the_rest_on_the_left():
    assert list(output.table_lines(TABLE, ['name', 'count', 'note'])) == [
        'name    count  note',
        '------  -----  ---------',
        'a           5',
        'longer     12  two words',
    ]


def test_a_table_without_rows_is_its_heading():
    assert list(output.table_lines([], ['free_mb'])) == ['free mb', '-------']


def test_cells_are_folded_where_the_width_is_limited():
    rows = [{'name': 'host', 'reason': 'it is being replaced by another'}]
    found = list(output.table_lines(rows, ['name', 'reason'], 20))
    assert max(map(len, found)) <= 20
    assert found[2:] == [
        'host  it is being',
        '      replaced by',
        '      another',
    ]


def test_a_word_that_is_too_long_is_cut():
    rows = [{'name': 'abcdefghijkl'}]
    found = list(output.table_lines(rows, ['name'], 5))
    assert found[2:] == ['abcdefgh', 'ijkl']


def test_wide_characters_take_two_places():
    rows = [{'name': '日本', 'x': 'a'}, {'name': 'abcd', 'x': 'b'}]
    assert list(output.table_lines(rows, ['name', 'x']))[2:] == [
        '日本  a',
        'abcd  b',
    ]
