"""Completion of command lines, asked of real shells."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from scheduler_service.cmd import completion, manage, parser, service, status
from tests.support import shells

PLACES = completion.places(parser.build())
# Where the package installs the script of a program, by shell.
PATHS = {
    'bash': 'bash-completion/completions/{}',
    'zsh': 'zsh/site-functions/_{}',
    'fish': 'fish/vendor_completions.d/{}.fish',
}
# Line -> what is offered at its end, in any order; in the folder is a.conf.
OFFERED = {
    'scheduler-manage in': 'inventory',
    'scheduler-manage db ': 'check purge sync version',
    'scheduler-manage host list --so': '--sort',
    'scheduler-manage --config-file a.conf host dra': 'drain',
    'scheduler-manage pool delete host ': '',
    # Values of options.
    'scheduler-manage claim list --state c': 'claimed confirmed',
    'scheduler-manage host list -f ': 'table json yaml csv value',
    'scheduler-manage host list --format=': 'table json yaml csv value',
    'scheduler-manage host list --format=c': 'csv',
    'scheduler-manage host list --sort ': '',
    # They are no commands, even where one is called so.
    'scheduler-manage --config-file db hos': 'host',
    'scheduler-manage --config-file=db hos': 'host',
    # Files.
    'scheduler-manage --config-file ': 'a.conf',
    'scheduler-manage --config-file=a': 'a.conf',
    'scheduler-manage inventory import a': 'a.conf',
    'scheduler-manage select --request ': 'a.conf',
    'scheduler-manage capacity --flavor ': 'a.conf',
    # What a command itself may be told.
    'scheduler-manage completion ': 'bash zsh fish',
    'scheduler-manage --config-file a.conf completion z': 'zsh',
    # Another program.
    'scheduler-status up': 'upgrade',
    'scheduler-status --config-file a.conf upgrade ': 'check',
    'scheduler-status upgrade check --j': '--json',
}


@pytest.fixture(scope='module')
def share(tmp_path_factory):
    """A folder with the scripts, as the package has it."""
    folder = tmp_path_factory.mktemp('share')
    for built in (parser.build(), status.parser()):
        found = completion.places(built)
        for shell, path in PATHS.items():
            script = folder / path.format(built.prog)
            script.parent.mkdir(parents=True, exist_ok=True)
            script.write_text(completion.script(built.prog, found, shell))
    return folder


@pytest.mark.parametrize('shell', completion.SHELLS)
def test_shells_offer_what_may_stand_at_the_end_of_a_line(shell, share):
    answers = shells.offered(shell, share, list(OFFERED))
    # Some offer the options of a command beside its words.
    found = {
        line: {word for word in words if line[-1] != ' ' or word[0] != '-'}
        for line, words in zip(OFFERED, answers, strict=True)
    }
    assert found == {
        line: set(words.split()) for line, words in OFFERED.items()
    }


@pytest.mark.parametrize('shell', completion.SHELLS)
@pytest.mark.parametrize(
    ('program', 'asked'),
    [
        (manage, 'completion'),
        (service, '--shell_completion'),
        (status, '--shell_completion'),
    ],
    ids=['manage', 'service', 'status'],
)
def test_each_shell_reads_its_script(shell, program, asked, capsys, tmp_path):
    assert program.main([asked, shell]) == 0
    text = capsys.readouterr().out
    assert '--config-file' in text or '-l config-file' in text
    path = tmp_path / 'script'
    path.write_text(text)
    # The others are read where they are installed.
    if shutil.which(shell):
        subprocess.run([shell, '-n', str(path)], check=True)


def test_every_command_is_in_every_script():
    for shell in completion.SHELLS:
        text = completion.script('scheduler-manage', PLACES, shell)
        for command in parser.commands(parser.build()):
            for word in command.split():
                assert word in text, (shell, command)


def test_quotes_in_help_texts_do_not_end_the_script():
    place = completion.Place({'word': "it's $HOME `x` \\"}, {}, {})
    text = completion.script('x', {'': place}, 'fish')
    assert r"-d 'it\'s $HOME `x` \\'" in text


def test_a_shell_that_is_none_is_refused(capsys):
    assert service.main(['--shell_completion=tcsh']) == 2
    assert "'tcsh' is not one of bash, zsh, fish" in capsys.readouterr().err


def test_nothing_is_asked_for_without_arguments():
    assert completion.asked_shell([]) is None
    assert completion.asked_shell(['--shell_completion']) == ''


def test_the_daemon_prints_its_script_in_a_process_of_its_own():
    done = subprocess.run(
        [sys.executable, '-m', 'scheduler_service.cmd.service',
         '--shell_completion', 'bash'],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert 'complete -o' in done.stdout
