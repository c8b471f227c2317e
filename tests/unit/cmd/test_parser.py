"""The command line: every argument says what it is for."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys

import pytest

from scheduler_service.cmd import commands, manage, parser, service, status
from tests.support.waiting import LIMIT_S

APP = manage.App()
COMMANDS = APP.parsers()


@pytest.mark.parametrize('command', COMMANDS)
def test_every_argument_has_a_help_text(command):
    actions = COMMANDS[command]._actions
    assert [action.dest for action in actions if not action.help] == []
    assert COMMANDS[command].description


def test_every_argument_before_the_command_has_a_help_text():
    actions = APP.parser._actions
    assert [action.dest for action in actions if not action.help] == []


@pytest.mark.parametrize('command', COMMANDS)
def test_every_command_has_a_function(command):
    module, _, name = parser.COMMANDS[command].work.partition(':')
    found = importlib.import_module(f'{commands.__name__}.{module}')
    assert callable(getattr(found, name))


@pytest.mark.parametrize('command', COMMANDS)
def test_every_list_has_the_same_options(command):
    options = COMMANDS[command]._option_string_actions
    if '--limit' in options or command.endswith(' list'):
        assert {'-f', '-c', '--sort-column', '--fit-width'} <= options.keys()
        choices = options['-f'].choices
        assert {'table', 'json', 'yaml', 'csv', 'value'} <= set(choices)


@pytest.mark.parametrize(
    'words', [['--timeout', '5', 'ping'], ['ping', '--timeout', '5']]
)
def test_the_time_limit_stands_before_or_after_the_command(words):
    parse = APP.parser.parse_known_args
    assert (parse(words)[0].timeout, parse(words)[1]) == (5, ['ping'])
    assert parse(['ping'])[0].timeout is None


@pytest.mark.parametrize(
    ('text', 'expected'),
    [('1', 1), ('1.5', 1.5), ('30s', 30), ('2m', 120), ('6h', 21600)],
)
def test_times_have_units(text, expected):
    assert parser.seconds(text) == expected


@pytest.mark.parametrize('text', ['', 's', '0', '-1', 'nan', 'inf', '1w'])
def test_times_that_are_none_are_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        parser.seconds(text)


@pytest.mark.parametrize('program', [manage, service, status])
def test_the_version_is_printed(program, capsys):
    with pytest.raises(SystemExit) as ended:
        program.main(['--version'])
    assert not ended.value.code
    name = program.__name__.rpartition('.')[2]
    assert capsys.readouterr().out.startswith(f'scheduler-{name} ')


@pytest.mark.parametrize(
    ('words', 'meant'),
    [
        ('hots list', 'host'),
        ('host lst', 'list'),
        ('host list --sotr-column used', '--sort-column'),
        ('host list -f jsn', 'json'),
        ('host list --zzzz', ''),
        ('host', ''),
    ],
)
def test_what_may_be_meant_is_named(words, meant, capsys):
    with pytest.raises(SystemExit) as ended:
        manage.main(words.split())
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith(f'is {meant} meant?') is bool(meant)
    assert ('meant?' in last) is bool(meant)


def test_commands_do_not_choose_another_backend_for_threads():
    """It would warn of its age; the bus's own package chooses it."""
    modules = {
        each.work.partition(':')[0] for each in parser.COMMANDS.values()
    }
    names = '; '.join(f'import {commands.__name__}.{each}' for each in modules)
    done = subprocess.run(
        [sys.executable, '-c', names],
        capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    assert done.stderr == ''


@pytest.mark.parametrize(
    ('words', 'end'),
    [
        ('--timeout 3 ping --all', 'unrecognized arguments: --all'),
        ('decision list --untill 3', '--untill 3; is --until meant?'),
        ('db sync --debag', '--debag; is --debug meant?'),
    ],
)
def test_only_options_of_the_command_are_suggested(words, end, capsys):
    with pytest.raises(SystemExit):
        manage.main(words.split())
    assert capsys.readouterr().err.endswith(f'{end}\n')
