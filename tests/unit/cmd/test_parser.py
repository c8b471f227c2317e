"""The command line: every argument says what it is for."""

from __future__ import annotations

import argparse
import importlib

import pytest

from scheduler_service.cmd import manage, parser, parser_parts

COMMANDS = parser.commands(parser.build())


@pytest.mark.parametrize('command', COMMANDS)
def test_every_argument_has_a_help_text(command):
    actions = COMMANDS[command]._actions
    assert [one.dest for one in actions if not one.help] == []
    assert COMMANDS[command].description


def test_every_argument_before_the_command_has_a_help_text():
    found = parser.build()
    assert [one.dest for one in found._actions if not one.help] == [
        # The nouns, which have help texts of their own.
        'noun'
    ]


@pytest.mark.parametrize('command', COMMANDS)
def test_every_command_has_a_function(command):
    module, _, name = COMMANDS[command].get_default('run').partition(':')
    found = importlib.import_module(manage._MODULES[module])
    assert callable(getattr(found, name))


@pytest.mark.parametrize('command', COMMANDS)
def test_every_list_has_the_same_options(command):
    options = COMMANDS[command]._option_string_actions
    if '--sort' in options or command.endswith(' list'):
        assert {'-f', '--columns', '--sort', '--limit'} <= options.keys()
        choices = options['-f'].choices
        assert choices == ('table', 'json', 'yaml', 'csv', 'value')


@pytest.mark.parametrize(
    'words', [['--timeout', '5', 'ping'], ['ping', '--timeout', '5']]
)
def test_the_time_limit_stands_before_or_after_the_command(words):
    assert parser.build().parse_args(words).timeout == 5
    assert parser.build().parse_args(['ping']).timeout is None


@pytest.mark.parametrize(
    ('text', 'expected'),
    [('1', 1), ('1.5', 1.5), ('30s', 30), ('2m', 120), ('6h', 21600)],
)
def test_times_have_units(text, expected):
    assert parser_parts.seconds(text) == expected


@pytest.mark.parametrize('text', ['', 's', '0', '-1', 'nan', 'inf', '1w'])
def test_times_that_are_none_are_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        parser_parts.seconds(text)


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as ended:
        manage.main(['--version'])
    assert not ended.value.code
    assert capsys.readouterr().out.startswith('scheduler-manage ')
