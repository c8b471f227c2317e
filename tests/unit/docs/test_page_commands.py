"""Each command line and configuration on a page is run or checked."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from scheduler_service import conf as options
from scheduler_service import rpc  # noqa: F401 - chooses the bus's backend
from scheduler_service.cmd import adapters
from scheduler_service.conf import effective, option_names
from scheduler_service.rpc import transport
from tests.support import page_commands
from tests.support.page_commands import (
    NOT_RUN,
    RUN_BY,
    RUN_ELSEWHERE,
    RUN_IN_PART,
    page,
)
from tests.support.paths import ROOT
from tests.support.waiting import LIMIT_S

PAGES = {
    str(path.relative_to(ROOT)): path for path in page_commands.all_pages()
}
LINES = sorted(
    {
        (name, line)
        for name, path in PAGES.items()
        for line in page_commands.lines(path)
    }
)
# Of these pages the configuration is for other programs, too, and has tests
# of its own.
OTHERS = ('designate', 'README')
CONFIGURATIONS = [
    (name, text)
    for name, path in PAGES.items()
    for text in page_commands.of_language(path, 'ini')
    if path.stem not in OTHERS
]
LANGUAGES = {
    '', 'console', 'ini', 'promql', 'python', 'sql', 'text', 'yaml',
}  # fmt: skip


def test_each_of_the_fifteen_questions_has_a_command():
    text = page('questions').read_text()
    _, *parts = re.split(r'^(\d+)\. ', text, flags=re.MULTILINE)
    assert [*map(int, parts[::2])] == [*range(1, 16)]
    lines = page_commands.lines(page('questions'))
    for question in parts[1::2]:
        found = re.findall('^ +(scheduler-manage .*)$', question, re.MULTILINE)
        assert found, question
        assert {*found} <= {*lines}


def test_blocks_are_told_apart(tmp_path):
    path = tmp_path / 'a.rst'
    path.write_text(
        'Run this::\n\n    one \\\n        --two\n\n    three\n\n'
        '.. note::\n\n   no block\n\n'
        '1. Or ::\n\n       four\n\n   text\n\n'
        '   .. code-block:: console\n\n      $ five\n      # six\n\n'
        '.. code-block:: ini\n\n    [a]\n    b = c\n'
    )
    assert page_commands.shell_blocks(path) == [
        ['one --two', 'three'], ['four'], ['five', 'six'],
    ]  # fmt: skip
    assert page_commands.of_language(path, 'ini') == ['[a]\nb = c']
    assert page_commands.lines(path, 'four') == ['four']


@pytest.mark.parametrize(('name', 'line'), LINES)
def test_a_line_runs_in_a_test_or_it_is_listed_why_not(name, line):
    if line not in NOT_RUN:
        where = page_commands.runs_at(PAGES[name], line)
        assert (ROOT / where).is_file(), line


def test_what_is_listed_is_on_a_page():
    listed = {*NOT_RUN, *RUN_IN_PART, *RUN_ELSEWHERE}
    assert sorted(listed - {line for _, line in LINES}) == []
    empty = [name for name in RUN_BY if not page_commands.lines(page(name))]
    assert empty == []


def test_lines_that_ask_a_daemon_are_on_the_page_on_installing():
    install = {*page_commands.lines(page('install'))}
    asking = {
        page_commands.plain(line)
        for _, line in LINES
        if line.startswith('scheduler-manage ')
        and page_commands.asks_a_daemon(line)
    }
    assert len(asking) > 2
    assert sorted(asking - install) == []


@pytest.mark.parametrize('name', PAGES)
def test_languages_of_blocks_are_known(name):
    found = {block.language for block in page_commands.blocks(PAGES[name])}
    assert sorted(found - LANGUAGES) == []


@pytest.mark.parametrize(('name', 'text'), CONFIGURATIONS)
def test_a_configuration_on_a_page_is_accepted(name, text, tmp_path, caplog):
    file = tmp_path / 'a.conf'
    file.write_text(text)
    conf = adapters.new_config()
    transport.for_client(conf, 'rabbit://')
    transport.for_notifications(conf, 'rabbit://')
    options.parse(
        conf, ['--config-file', str(file)],
        default_config_files=[], default_config_dirs=[],
    )  # fmt: skip
    assert effective.faults(conf) == []
    option_names.warn(conf)
    assert caplog.text == ''


def test_the_line_for_release_notes_makes_one(tmp_path):
    (line,) = page_commands.lines(ROOT / 'CONTRIBUTING.rst')
    program, *words = line.split()
    shutil.copytree(
        ROOT / 'releasenotes/source', tmp_path / 'releasenotes/source'
    )
    subprocess.run(
        [pathlib.Path(sys.executable).parent / pathlib.Path(program).name,
         *words],
        cwd=tmp_path, check=True, capture_output=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert list((tmp_path / 'releasenotes/notes').glob('what-changes-*.yaml'))
