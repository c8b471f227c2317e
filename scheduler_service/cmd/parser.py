"""The command line of ``scheduler-manage``: nouns, verbs and arguments.

Imports nothing heavy, so that ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

from scheduler_service.cmd import (
    completion,
    parser_requests,
    parser_resources,
)
from scheduler_service.cmd.parser_parts import (
    Parser,
    Version,
    command,
    form,
    noun,
    past,
    positive,
    seconds,
)


def build() -> argparse.ArgumentParser:
    """Return the parser; the attribute ``run`` names the function to run."""
    parser = Parser(
        prog='scheduler-manage',
        description='Operate the scheduler: its database, hosts and claims.',
    )
    parser.add_argument(
        '--config-file',
        action='append',
        default=[],
        metavar='PATH',
        help='configuration file; may be given several times',
    )
    parser.add_argument(
        '--config-dir',
        action='append',
        default=[],
        metavar='DIR',
        help='folder of configuration files; may be given several times',
    )
    parser.add_argument(
        '--version', action=Version, help='print the release, and end'
    )
    nouns = parser.add_subparsers(dest='noun', required=True, metavar='NOUN')
    for add in (
        _database,
        parser_resources.inventory,
        parser_resources.pools,
        parser_resources.hosts,
        parser_resources.aggregates,
        parser_resources.groups,
        parser_resources.capacity,
        parser_requests.zones,
        parser_requests.scheduling,
        parser_requests.decisions,
        parser_requests.claims,
        _messages,
        _policy,
        _completion,
        _daemons,
        _configuration,
    ):
        add(nouns)
    for one in (parser, *commands(parser).values()):
        _common(one, one is parser)
    return parser


def commands(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Return the parser of each command by its words, such as ``db sync``."""
    found: dict[str, Any] = {}
    for words, inner in _inner(parser).items():
        below = commands(inner)
        if not below:
            found[words] = inner
        found.update((f'{words} {more}', one) for more, one in below.items())
    return found


def refuse(args: Any, text: str) -> int:
    """Print what is wrong with a command line, as the parser does.

    :param args: of the command line
    :param text: what is wrong
    :return: the exit status
    """
    words = (args.noun, getattr(args, 'verb', None))
    found = commands(build())[' '.join(filter(None, words))]
    with contextlib.suppress(SystemExit):
        found.error(text)
    return 2


def _inner(parser: argparse.ArgumentParser) -> dict[str, Any]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _common(parser: argparse.ArgumentParser, outermost: bool) -> None:
    """Add what may stand before and after the words of a command."""
    parser.add_argument(
        '--timeout',
        type=seconds,
        default=None if outermost else argparse.SUPPRESS,
        metavar='SECONDS',
        help='give up after this time; database and broker may take all of '
        'it (default: no limit, but 3 s to connect to the database and 10 s '
        'to the broker)',
    )
    parser.add_argument(
        '--debug',
        action='store_true',
        default=False if outermost else argparse.SUPPRESS,
        help='print where in the program an error was met',
    )


def _database(nouns: Any) -> None:
    verb = noun(nouns, 'db', "the database's tables")
    verb('sync', 'database:sync', 'create or upgrade the tables')
    verb('version', 'database:show_version', 'print the version of the tables')
    verb('check', 'database:check', 'compare the tables with this release')
    purge = verb('purge', 'database:purge', 'delete what is old')
    purge.add_argument(
        '--decisions',
        action='store_true',
        required=True,
        help='delete decisions with their reasons',
    )
    purge.add_argument(
        '--before',
        type=past,
        required=True,
        metavar='TIME',
        help='made before this: a date or time (UTC) such as 2026-11-01, or '
        'an age such as 30d, 12h or 90m',
    )
    purge.add_argument(
        '--batch',
        type=positive,
        default=1000,
        metavar='N',
        help='delete so many in a transaction (default: 1000)',
    )


def _messages(nouns: Any) -> None:
    verb = noun(nouns, 'message', 'quarantined messages')
    verb('list', 'messages:listing', 'list quarantined messages', True)
    shown = verb('show', 'messages:show', 'print one in full')
    shown.add_argument('message_id', help='as message list prints it')
    form(shown)
    for word, run, what in (
        ('retry', 'messages:retry', 'send one again'),
        ('drop', 'messages:drop', 'remove one'),
    ):
        verb(word, run, what).add_argument(
            'message_id', help='as message list prints it'
        )


def _policy(nouns: Any) -> None:
    verb = noun(nouns, 'policy', 'rules of who may do what')
    check = verb(
        'check', 'policy:check', 'check the policy file; print its effect',
        True,
    )  # fmt: skip
    check.add_argument(
        '--role',
        action='append',
        default=[],
        help='only print what a caller with this role may do; may be given '
        'several times',
    )
    check.add_argument('--user', help='the id of this caller')
    check.add_argument('--project', help='the project of this caller')
    check.add_argument(
        '--owner', help='the project that owns what the caller acts on'
    )


def _completion(nouns: Any) -> None:
    printed = command(
        nouns, 'completion', 'print a script that completes command lines'
    )
    printed.set_defaults(run='shells:completion')
    printed.add_argument(
        'shell', choices=completion.SHELLS, help='the shell to print it for'
    )


def _daemons(nouns: Any) -> None:
    verb = noun(nouns, 'daemon', 'daemons that share the store')
    verb(
        'list', 'daemons:listing',
        'list them: release, configuration, last sign of life', True,
    )  # fmt: skip


def _configuration(nouns: Any) -> None:
    verb = noun(nouns, 'configuration', 'what options are set to')
    show = verb(
        'show', 'daemons:show', 'print what is set, and where; no secrets',
        True,
    )  # fmt: skip
    show.add_argument(
        '--daemon', help='of this daemon, by its name; default: of the files'
    )
    show.add_argument(
        '--all', action='store_true', help='also what has its default'
    )
    diff = verb('diff', 'daemons:diff', 'print where two daemons differ', True)
    diff.add_argument('daemon', help='the name of a daemon')
    diff.add_argument(
        '--all',
        action='store_true',
        help='also what daemons need not have in common, such as their names',
    )
    diff.add_argument(
        'other', nargs='?', help='of another one; default: the files'
    )
