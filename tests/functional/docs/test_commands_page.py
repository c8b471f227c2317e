"""Every command line on the page of commands, run in its order."""

from __future__ import annotations

import re
import shlex
import shutil

import pytest

from scheduler_service.cmd import manage
from tests.support.paths import ROOT

PAGE = ROOT / 'doc/source/admin/commands.rst'
# Commands that end with 1 where they found what they look for.
FOUND = ('inventory diff',)
# Those that ask a daemon are run by the tests of the shipped files.
CALLING = ('ping', 'release')


def lines():
    """Return the command lines of the page's literal blocks."""
    text = re.sub(r'\\\n\s+', '', PAGE.read_text())
    found = re.findall(r'(?m)^ {4}(?:\$ )?scheduler-manage (.*)$', text)
    return [shlex.split(line, comments=True) for line in found]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder in which the page's files are."""
    for name in ('inventory.yaml', 'request.yaml'):
        shutil.copy(ROOT / 'etc/scheduler_service' / name, tmp_path / name)
    (tmp_path / 'scheduler_service.conf').write_text(
        f'[database]\nconnection = sqlite:///{tmp_path}/page.sqlite\n'
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_line_works(folder, capsys):
    config = ['--config-file', 'scheduler_service.conf']
    ran = 0
    for words in lines():
        if words[0] in CALLING:
            continue
        given = [] if '--config-file' in words else config
        status = manage.main([*given, *words])
        told = capsys.readouterr()
        allowed = (0, 1) if ' '.join(words[:2]) in FOUND else (0,)
        assert status in allowed, (words, told.err)
        assert told.out, words
        ran += 1
    assert ran >= 8
