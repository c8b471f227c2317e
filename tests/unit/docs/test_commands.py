"""Commands and options that pages name are those of the programs."""

import functools
import importlib.util
import re
import shlex

import pytest

from designate_scheduler_service import options as designate_options
from scheduler_service import conf as options
from scheduler_service import rpc  # noqa: F401 - chooses the bus's backend
from scheduler_service.cmd import adapters, manage
from scheduler_service.compute.placement import options as placement
from scheduler_service.rpc import transport
from tests.support.pages import literals, pages
from tests.support.paths import ROOT

PROGRAM = 'scheduler-manage'
NOTES = sorted((ROOT / 'releasenotes/notes').glob('*.yaml'))
TEXTS = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (*pages(), *NOTES)
}


def commands(text):
    """Return the command lines in literals and in literal blocks."""
    blocks = re.sub(r'\\\n\s+', '', text)
    lines = re.findall(rf'(?m)^\s+({PROGRAM} .*)$', blocks)
    named = [
        literal
        for literal in literals(text)
        if literal.startswith(f'{PROGRAM} ')
    ]
    return [*lines, *named]


def options_named(text):
    """Return (group, name) of options in literals, and in plain tables."""
    named = re.findall(r'\[([\w:]+)\]\s+([a-z]+_\w+)', text)
    for literal in literals(text):
        named += re.findall(r'^\[([\w:]+)\] ([a-z]\w+)', literal)
    return named


COMMANDS = sorted(
    {(page, line) for page, text in TEXTS.items() for line in commands(text)}
)
OPTIONS = sorted(
    {
        (page, *found)
        for page, text in TEXTS.items()
        for found in options_named(text)
    }
)
MODULES = sorted(
    {
        name
        for text in TEXTS.values()
        for name in re.findall(r'python -m (benchmarks\.\w+)', text)
    }
)


@pytest.mark.parametrize(('page', 'line'), COMMANDS)
def test_a_command_is_parsed(page, line):
    app = manage.App()
    _, words = app.parser.parse_known_args(shlex.split(line)[1:])
    if len(words) < 2:
        # Options of the program, a noun, or a command without its arguments.
        firsts = {each.split()[0] for each, _ in app.command_manager}
        assert firsts.issuperset(words)
        return
    command, name, rest = app.command_manager.find_command(words)
    parse = command(app, None).get_parser(name).parse_args
    if all(re.fullmatch('[a-z-]+', word) for word in words):
        # It may lack arguments.
        with pytest.raises(SystemExit) as ended:
            parse([*rest, '--help'])
        assert not ended.value.code
    else:
        parse(rest)


@pytest.mark.parametrize(('page', 'group', 'name'), OPTIONS)
def test_an_option_exists(page, group, name):
    if (group, name) in older_names():
        return
    if group == placement.GROUP:
        assert name in {option.dest for option in placement.options()}
        return
    conf = registered()
    assert name in (conf if group == 'DEFAULT' else conf[group])


@functools.cache
def registered():
    """Return the options of everything that reads some."""
    conf = adapters.new_config()
    transport.for_client(conf, 'rabbit://')
    transport.for_notifications(conf, 'rabbit://')
    designate_options.register_opts(conf)
    options.parse(conf, [], default_config_files=[], default_config_dirs=[])
    return conf


@functools.cache
def older_names():
    """Return (group, name) under which options are read, too."""
    return {
        (old.group or group or 'DEFAULT', old.name)
        for group, opts in adapters.list_opts()
        for opt in opts
        for old in opt.deprecated_opts
    }


@pytest.mark.parametrize('name', MODULES)
def test_a_benchmark_exists(name):
    assert importlib.util.find_spec(name) is not None
