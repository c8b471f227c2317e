"""Lists: their columns, order, rows and format; tables that line up."""

import argparse
import json
import os
import subprocess
import sys
import types

import pytest

from scheduler_service import texts
from scheduler_service.cmd import output
from scheduler_service.cmd.parser import Lister
from tests.support.waiting import LIMIT_S

ROWS = [
    {'host': 'b', 'used': 2, 'zone': None},
    {'host': 'a, c', 'used': 10, 'zone': 'north'},
    {'host': 'd', 'used': 2, 'zone': 'east'},
]
TABLE = [
    {'name': 'a', 'count': 5, 'note': None},
    {'name': 'longer', 'count': 12, 'note': 'two words'},
]


def printed(capsys, form='value', rows=ROWS, *options):
    """Return what a list prints, by its command of cliff."""
    app = types.SimpleNamespace(
        stdout=sys.stdout,
        parser=argparse.ArgumentParser(),
        work=lambda *_: output.Listing(rows, ['host', 'used']),
    )
    lister = Lister(app, None)
    args = lister.get_parser('list').parse_args(['-f', form, *options])
    assert lister.run(args) == 0
    return capsys.readouterr().out


def test_columns_are_those_that_are_asked_for(capsys):
    words = '-c', 'zone', '-c', 'host', '--limit', '2'
    assert printed(capsys, 'value', ROWS, *words) == ' b\nnorth a, c\n'
    assert json.loads(printed(capsys, 'json', ROWS, '-c', 'used')) == [
        {'used': 2},
        {'used': 10},
        {'used': 2},
    ]


def test_json_has_all_columns_unless_asked_otherwise(capsys):
    assert json.loads(printed(capsys, 'json')) == ROWS


@pytest.mark.parametrize(
    ('sort', 'expected'),
    [
        (['used', '--sort-descending'], ['a, c', 'b', 'd']),
        (['used', '--sort-column', 'host'], ['b', 'd', 'a, c']),
        (['zone'], ['d', 'a, c', 'b']),
        (['zone', '--sort-descending'], ['a, c', 'd', 'b']),
    ],
)
def test_rows_are_sorted_with_empty_cells_last(capsys, sort, expected):
    words = '-c', 'host', '--sort-column', *sort
    found = printed(capsys, 'value', ROWS, *words)
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
    output.remark(texts.nothing_matches('--zone', value, known))
    printed = capsys.readouterr()
    assert printed.out == ''
    assert printed.err.startswith('--zone ')
    assert printed.err.endswith(told)
    assert printed.err.count('\n') == 1


def test_no_value_is_meant_where_comparing_them_takes_long(capsys):
    known = [f'compute-{n}' for n in range(200_000)]
    output.remark(texts.nothing_matches('--host', 'compte-1', known))
    assert capsys.readouterr().err.endswith(' and 199980 more\n')


def test_the_limit_counts_after_sorting(capsys):
    words = '-c', 'host', '--sort-column', 'used', '--sort-descending'
    found = printed(capsys, 'value', ROWS, *words, '--limit', '1')
    assert found == 'a, c\n'
    assert len(printed(capsys).splitlines()) == 3


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
        capture_output=True, timeout=LIMIT_S, check=True,
        env={**os.environ, 'PYTHONIOENCODING': 'ascii'},
    )  # fmt: skip
    first, document = done.stdout.split(b'\n', 1)
    assert first == b'before'
    assert json.loads(document) == {'a': 'gr\u00fcn\u65e5'}


def test_numbers_are_on_the_right_and_the_rest_on_the_left(capsys):
    output.table(TABLE, ['name', 'count', 'note'])
    assert capsys.readouterr().out.splitlines() == [
        '+--------+-------+-----------+',
        '| name   | count | note      |',
        '+--------+-------+-----------+',
        '| a      |     5 |           |',
        '| longer |    12 | two words |',
        '+--------+-------+-----------+',
    ]


def test_a_table_cannot_move_the_cursor_of_a_terminal(capsys):
    found = printed(capsys, 'table', [{'host': 'a\x1b[2J\nb', 'used': 1}])
    assert '\x1b' not in found
    assert '| a\\x1b[2J\\nb |    1 |' in found


def test_cells_are_folded_where_the_width_is_limited(capsys):
    rows = [{'host': 'it is being replaced by another', 'used': 1}]
    found = printed(capsys, 'table', rows, '--max-width', '30')
    assert max(map(len, found.splitlines())) <= 30
    assert 'replaced' in found
