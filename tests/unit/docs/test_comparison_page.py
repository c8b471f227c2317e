"""The page of comparison has figures in its table alone, with their source."""

import csv
import re

import pytest

from tests.support import page_commands
from tests.support.paths import ROOT

PAGE = page_commands.page('comparison')
FIGURES = PAGE.with_suffix('.csv')
ROWS = list(csv.DictReader(FIGURES.read_text().splitlines()))
# A number with what it measures.
FIGURE = re.compile(r'\d(?:\s|-)*(?:ms|s|MB|%|times|/s|a second)\b')
COMMANDS = sorted({row['Printed by'] for row in ROWS})


def test_the_page_shows_the_file_and_has_no_other_figures():
    text = PAGE.read_text()
    assert f'.. csv-table::\n   :file: {FIGURES.name}\n' in text
    assert FIGURE.findall(text) == []
    assert FIGURE.search(FIGURES.read_text())


def test_every_row_is_complete():
    assert len(ROWS) > 5
    for row in ROWS:
        assert list(row) == ['Measure', 'Today', 'This service', 'Printed by']
        assert all(row.values()), row


@pytest.mark.parametrize('command', COMMANDS)
def test_a_figure_names_a_benchmark_with_options_that_it_has(command):
    python, option, module, *words = command.split()
    assert (python, option) == ('python', '-m')
    source = (ROOT / f'{module.replace(".", "/")}.py').read_text()
    for word in words:
        if word.startswith('--'):
            assert f"'{word}'" in source
