"""Completion of command lines, asked of real shells."""

import shutil
import subprocess
import sys

import pytest

from scheduler_service.cmd import manage, parser, service, status
from scheduler_service.cmd.commands import completion
from tests.support import shells
from tests.support.waiting import LIMIT_S

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
    'scheduler-manage host list --sort-col': '--sort-column',
    'scheduler-manage --config-file a.conf host dra': 'drain',
    'scheduler-manage pool delete host ': '',
    # Values of options.
    'scheduler-manage claim list --state c': 'claimed confirmed',
    'scheduler-manage host list -f ': 'csv json table value yaml',
    'scheduler-manage host list --sort-column ': '',
    'scheduler-manage --config-file no.conf hos': 'host',
    # Files.
    'scheduler-manage --config-file ': 'a.conf',
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
    for built in (completion.tree(), status.parser()):
        for shell, path in PATHS.items():
            script = folder / path.format(built.prog)
            script.parent.mkdir(parents=True, exist_ok=True)
            script.write_text(completion.script(built, shell))
    return folder


@pytest.mark.parametrize('shell', parser.SHELLS)
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


@pytest.mark.parametrize('shell', parser.SHELLS)
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


def test_a_shell_that_is_none_is_refused(capsys):
    assert service.main(['--shell_completion=tcsh']) == 2
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err
    assert service.main(['--shell_completion']) == 2


def test_the_daemon_prints_its_script_in_a_process_of_its_own():
    done = subprocess.run(
        [sys.executable, '-m', 'scheduler_service.cmd.service',
         '--shell_completion', 'bash'],
        capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    assert 'complete -o' in done.stdout
