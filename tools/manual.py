"""Write the man pages of the programs: ``python tools/manual.py FOLDER``.

``setup.py`` runs it when a package is built. The pages of ``scheduler-manage``
and ``scheduler-status`` are made of their parsers, which is why this imports
nothing but these and cliff: a build has none of the other libraries that the
programs need.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
_CONFIG = (
    ('--config-file PATH', 'configuration file; may be given several times'),
    ('--config-dir DIR', 'folder of files; may be given several times'),
)
_VERSION = ('--version', 'print the release, and end')
_STATUS = (
    ('0', 'all is well'),
    ('1', 'it failed; standard error has the name of the error and why'),
)
_ALL = (
    'scheduler-service', 'scheduler-manage', 'scheduler-status',
    'scheduler-quickstart',
)  # fmt: skip


class Command(NamedTuple):
    """A command or a group of them.

    :ivar words: what is typed, after the program
    :ivar text: what it is for
    :ivar usage: its arguments on one line
    :ivar arguments: (how it is written, its help) of each
    """

    words: str
    text: str
    usage: str
    arguments: list[tuple[str, str]]


class Program(NamedTuple):
    """What a page says about a program.

    :ivar summary: one line
    :ivar text: paragraphs
    :ivar arguments: (how it is written, its help) of each option
    :ivar commands: of a program that has some
    :ivar lists: options that each of its lists has
    :ivar statuses: (exit status, its meaning)
    """

    name: str
    summary: str
    text: tuple[str, ...]
    arguments: tuple[tuple[str, str], ...]
    commands: tuple[Command, ...] = ()
    statuses: tuple[tuple[str, str], ...] = _STATUS
    lists: tuple[tuple[str, str], ...] = ()


def commands(
    parser: argparse.ArgumentParser,
    words: str = '',
    text: str = '',
    lists: Collection[tuple[str, str]] = (),
) -> Iterator[Command]:
    """Yield the commands of a parser that can be run, in its order.

    :param lists: options that the page has once for all lists
    """
    inner = [
        action
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    if not inner:
        own = _own(parser, lists)
        usage = _usage(parser, own)
        if len(own) < len(_own(parser)):
            usage += ' [list options]'
        yield Command(words, text, usage, [*own.values()])
    for group in inner:
        texts = {
            action.dest: action.help or '' for action in group._choices_actions
        }
        for name, below in group.choices.items():
            yield from commands(
                below, f'{words} {name}'.strip(), texts.get(name, '')
            )


def _own(
    parser: argparse.ArgumentParser,
    lists: Collection[tuple[str, str]] = (),
) -> dict[argparse.Action, tuple[str, str]]:
    """Return how each argument of a parser is written, and its help.

    :param lists: what is left out
    """
    formatter = parser._get_formatter()
    entries = {
        action: (
            formatter._format_action_invocation(action),
            formatter._expand_help(action) if action.help else '',
        )
        for action in parser._actions
        if not isinstance(
            action, argparse._SubParsersAction | argparse._HelpAction
        )
        and action.help != argparse.SUPPRESS
    }
    return {
        action: entry
        for action, entry in entries.items()
        if entry not in lists
    }


def _usage(
    parser: argparse.ArgumentParser, own: Mapping[argparse.Action, object]
) -> str:
    """Return the arguments of a command on one line, after its words."""
    formatter = parser._get_formatter()
    groups = [
        group
        for group in parser._mutually_exclusive_groups
        if own.keys() >= {*group._group_actions}
    ]
    formatter.add_usage(None, own, groups, prefix='')
    return ' '.join(formatter.format_help().split()).split(' ', 1)[1]


def manage() -> Program:
    """Return what there is to say about ``scheduler-manage``."""
    from scheduler_service.cmd.manage import App
    from scheduler_service.cmd.parser import Lister

    app = App()
    lists = tuple(_own(Lister(app, None).get_parser('')).values())
    return Program(
        'scheduler-manage',
        'operate the scheduler: its database, hosts and claims',
        (
            'Commands work on the database, unless their description says '
            'that a daemon answers them. Without --config-file they read '
            'scheduler_service.conf in the usual places.',
        ),
        tuple(_own(app.parser).values()),
        tuple(
            command
            for words, built in app.parsers().items()
            for command in commands(
                built, words, built.description or '', lists
            )
        ),
        lists=lists,
    )


def programs() -> list[Program]:
    """Return what there is to say about each program."""
    from scheduler_service.cmd import status

    checks = status.parser()
    return [
        Program(
            'scheduler-service',
            'the daemon that selects hosts and pools',
            (
                'It serves requests on the message bus until SIGTERM or '
                'SIGINT; then it finishes those that it has. SIGHUP has it '
                'read its configuration again.',
            ),
            (*_CONFIG, _VERSION),
        ),
        manage(),
        Program(
            'scheduler-status',
            'what would not work after an upgrade',
            (
                'scheduler-status upgrade check, run with the new release '
                'before its daemons are started, looks at the database, the '
                'broker, the options and the policy. It changes nothing.',
            ),
            tuple(_own(checks).values()),
            tuple(commands(checks)),
            (
                ('0', 'all is well'),
                ('1', 'there are warnings'),
                ('2', 'something would not work'),
                ('255', 'the checks could not be run'),
            ),
        ),
        Program(
            'scheduler-quickstart',
            'try the whole service in one process',
            (
                'It needs no server: it runs a daemon on an SQLite file and '
                'a bus inside the process, sends it requests, and prints '
                'what was selected and why.',
            ),
            (
                ('--inventory FILE', 'inventory document'),
                ('--folder DIR', 'folder for all files'),
            ),
        ),
    ]


def page(program: Program) -> str:
    """Return the man page of a program."""
    lines = [
        f'.TH {_roff(program.name.upper())} 1 "" "scheduler-service"',
        '.SH NAME',
        f'{_roff(program.name)} \\- {_roff(program.summary)}',
        '.SH SYNOPSIS',
        f'.B {_roff(program.name)}',
        f'[options]{" command [arguments]" if program.commands else ""}',
        '.SH DESCRIPTION',
    ]
    for paragraph in program.text:
        lines += ['.PP', _roff(paragraph)]
    lines += ['.SH OPTIONS', *_terms(program.arguments)]
    if program.lists:
        lines += ['.SH LIST OPTIONS', *_terms(program.lists)]
    if program.commands:
        lines.append('.SH COMMANDS')
    for command in program.commands:
        lines += [
            f'.SS {_roff(command.words)}',
            _roff(command.text[:1].upper() + command.text[1:] + '.'),
            '.PP',
            f'.B {_roff(command.usage)}',
            *_terms(command.arguments),
        ]
    others = ', '.join(f'{_roff(name)}(1)' for name in _ALL
                       if name != program.name)  # fmt: skip
    lines += [
        '.SH EXIT STATUS', *_terms(program.statuses),
        '.SH FILES', '.I /etc/scheduler_service/scheduler_service.conf',
        '.SH SEE ALSO', others,
    ]  # fmt: skip
    return '\n'.join(lines) + '\n'


def _terms(entries: Iterable[tuple[str, str]]) -> list[str]:
    """Return a list of terms, each with its text."""
    lines: list[str] = []
    for term, text in entries:
        lines += ['.TP', f'.B {_roff(term)}', _roff(text) or '\\&']
    return lines


def _roff(text: str) -> str:
    """Return text on one line as roff takes it."""
    plain = ' '.join(text.split()).replace('\\', '\\e').replace('-', '\\-')
    return re.sub(r"^([.'])", r'\\&\1', plain)


def main(folder: pathlib.Path) -> None:
    """Write a page for each program."""
    sys.path.insert(0, str(ROOT))
    folder.mkdir(parents=True, exist_ok=True)
    for program in programs():
        (folder / f'{program.name}.1').write_text(page(program))


if __name__ == '__main__':
    main(pathlib.Path(sys.argv[1]))
