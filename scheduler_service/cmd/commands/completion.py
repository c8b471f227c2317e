"""``scheduler-manage completion``: scripts that complete command lines.

The scripts are made from the programs' parsers; completing a word starts no
Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import shtab

from scheduler_service.cmd import manage, parser

# Metavars of values that name a file or folder.
_PATHS = {'FILE', 'PATH', 'DIR'}


def run(args: Any, conf: Any) -> None:
    print(script(tree(), args.shell), end='')


def tree() -> argparse.ArgumentParser:
    """Return a parser of all commands, for their scripts."""
    program = manage.App()
    nouns = program.parser.add_subparsers()
    verbs: dict[str, Any] = {}
    for words, built in program.parsers().items():
        noun, _, verb = words.partition(' ')
        if verb and noun not in verbs:
            group = nouns.add_parser(noun, help=f'commands on {noun}')
            verbs[noun] = group.add_subparsers()
        group = verbs.get(noun, nouns)
        group.add_parser(verb or noun, help=built.description)
        group.choices[verb or noun] = built
    return program.parser


def script(program: argparse.ArgumentParser, shell: str) -> str:
    """Return the script of a shell for a program.

    :param shell: in ``parser.SHELLS``
    """
    _mark_paths(program)
    return f'{shtab.complete(program, shell)}\n'


def _mark_paths(program: argparse.ArgumentParser) -> None:
    for action in program._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                _mark_paths(inner)
        elif not action.choices and action.nargs != 0:
            named = str(action.metavar or action.dest).upper()
            if not _PATHS.isdisjoint(named.split('|')):
                action.complete = shtab.FILE  # type: ignore[attr-defined]


def answer(
    program: str, words: Sequence[str], build: Callable[[], Any]
) -> int:
    """Print the script for ``--shell_completion``.

    The library of the other options needs files for it that its package does
    not have.

    :param build: returns the parser of the program's options
    :return: the exit status
    """
    options = argparse.ArgumentParser(program, add_help=False)
    options.add_argument('--shell_completion', choices=parser.SHELLS)
    try:
        shell = options.parse_known_args(words)[0].shell_completion
    except SystemExit:
        return 2
    print(script(build(), shell), end='')
    return 0
