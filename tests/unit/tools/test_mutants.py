"""Mutants: the source with one small change."""

import ast
import sys

import pytest

from tests.support.paths import ROOT

sys.path.insert(0, str(ROOT / 'tools'))

import mutants


@pytest.mark.parametrize(
    ('body', 'expected'),
    [
        ('return a < b', {'return (a <= b)', 'return None'}),
        # An instant cannot be told apart, but before from after.
        ('x = time.monotonic() > a', {'x = (time.monotonic() <= a)'}),
        ('x = a.sent_at <= b', {'x = (a.sent_at > b)'}),
        ('x = Thread(a, daemon=True)', set()),
        ('return a and b', {'return (a or b)', 'return None'}),
        ('return not a', {'return (a)', 'return None'}),
        ('f(a)', {'pass'}),
        ('a.reply()\n    a.ack()', {'a.ack()\n    a.reply()',
                                    'pass\n    a.ack()',
                                    'a.reply()\n    pass'}),
        ('x = True', {'x = False'}),
        ('x = 5', {'x = 6', 'x = 0'}),
        ("q = 'SELECT a WHERE b AND c'", {"q = 'SELECT a WHERE b OR c'"}),
        ('LOG.info(1)', set()),
        ("'Documents.'", set()),
        ('raise ValueError(5)', set()),
        ("x = 'é' if a else b", {"x = (b if a else 'é')"}),
    ],
)  # fmt: skip
def test_changes_of_a_statement(body, expected):
    source = f'def f(a, b):\n    {body}\n'
    found = {
        mutant.source.removeprefix('def f(a, b):\n    ').removesuffix('\n')
        for mutant in mutants.of('f.py', source)
    }
    assert found == expected


def test_a_named_number_is_replaced_by_nought_and_not_by_one_more():
    made = mutants.of('f.py', '_LIMIT = 100\n')
    assert [mutant.source for mutant in made] == ['_LIMIT = 0\n']


def test_every_mutant_of_a_module_is_python_and_differs():
    path = ROOT / 'scheduler_service/rpc/peers.py'
    source = path.read_text()
    made = list(mutants.of('peers.py', source))
    assert len({mutant.source for mutant in made}) == len(made) > 10
    for mutant in made:
        assert ast.dump(ast.parse(mutant.source)) != ast.dump(
            ast.parse(source)
        )
        assert mutant.line in mutant.lines


def test_a_change_outside_of_functions_is_covered_by_the_whole_file():
    (mutant,) = mutants.of('f.py', 'LIMIT = 1\n\n\ndef f():\n    x = g\n')
    assert mutant.source.startswith('LIMIT = 2')
    assert 5 in mutant.lines
