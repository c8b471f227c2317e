"""Completion of command lines, asked of real shells."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from scheduler_service.cmd import completion, manage, parser, service, status

PLACES = completion.places(parser.build())
CHECKS = completion.places(status.parser())


def bash(line):
    """Return what bash offers at the end of a line."""
    words = line.split(' ')
    places = PLACES if words[0] == 'scheduler-manage' else CHECKS
    script = completion.script(words[0], places, 'bash')
    ask = (
        f'{script}\n'
        f'COMP_WORDS=({" ".join(word or chr(34) * 2 for word in words)})\n'
        f'COMP_CWORD={len(words) - 1}\n'
        f'_{words[0].replace("-", "_")}\n'
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ['bash', '-c', ask], capture_output=True, text=True, check=True
    )
    assert done.stderr == ''
    return done.stdout.split()


def test_bash_offers_nouns_verbs_and_options():
    assert 'inventory' in bash('scheduler-manage in')
    assert sorted(bash('scheduler-manage db ')[:3]) == [
        'check',
        'sync',
        'version',
    ]
    assert bash('scheduler-manage host list --so') == ['--sort']
    assert bash('scheduler-manage --config-file a.conf host dra') == ['drain']


def test_bash_offers_the_values_of_an_option():
    assert bash('scheduler-manage claim list --state c') == [
        'claimed',
        'confirmed',
    ]
    assert bash('scheduler-manage host list -f ') == [
        'table',
        'json',
        'yaml',
        'csv',
        'value',
    ]


def test_bash_completes_the_checks_of_an_upgrade():
    assert bash('scheduler-status up') == ['upgrade']
    assert bash('scheduler-status --config-file a.conf upgrade ')[0] == 'check'
    assert bash('scheduler-status upgrade check --j') == ['--json']


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
