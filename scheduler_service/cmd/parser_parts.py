"""What the parsers of several commands share.

Imports nothing heavy, so that ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from scheduler_service.cmd import completion, tables

_UNKNOWN = re.compile(r"invalid choice: '(.*?)' \(choose from (.*)\)$", re.S)
_NO_ARGUMENT = re.compile(r'unrecognized arguments:.*? (--?[\w-]+)', re.S)
FORMATS = ('table', 'json', 'yaml')
LIST_FORMATS = (*FORMATS, 'csv', 'value')


class WrongUsage(Exception):
    """A word of the command line that only the command itself can judge.

    The program ends as it does where the parser refuses one.
    """


class Parser(argparse.ArgumentParser):
    """A parser that names what may be meant by an unknown word."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong, and end the program with the status 2."""
        super().error(tables.cell(message + self._nearest(message)))

    def _nearest(self, message: str) -> str:
        word, known = '', set[str]()
        if found := _UNKNOWN.search(message):
            word, known = found[1], set(re.findall(r'[\w-]+', found[2]))
        elif found := _NO_ARGUMENT.search(message):
            word = found[1]
            for place in completion.places(self).values():
                known.update(place.options)
        near = difflib.get_close_matches(word, sorted(known), 1)
        return f'; is {near[0]} meant?' if near else ''


class Version(argparse.Action):
    """Prints the release; looked up only when it is asked for."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(nargs=0, **kwargs)

    def __call__(
        self, parser: argparse.ArgumentParser, *rest: Any, **more: Any
    ) -> None:
        from importlib import metadata

        print(parser.prog, metadata.version('scheduler-service'))
        parser.exit()


def noun(nouns: Any, name: str, text: str) -> Callable[..., Any]:
    """Add a noun; return a function that adds a verb to it."""
    verbs = nouns.add_parser(name, help=text, description=text).add_subparsers(
        dest='verb', required=True, metavar='VERB'
    )

    def verb(word: str, run: str, what: str, lists: bool = False) -> Any:
        added = verbs.add_parser(word, help=what, description=what)
        added.set_defaults(run=run)
        if lists:
            list_options(added)
        return added

    return verb


def command(nouns: Any, name: str, text: str) -> Any:
    """Add a command that is one word; return its parser."""
    return nouns.add_parser(name, help=text, description=text)


def form(parser: Any, default: str = 'table') -> None:
    """Add the option for the form of what is no list."""
    parser.add_argument(
        '-f',
        '--format',
        choices=FORMATS,
        default=default,
        help=f'how to print it (default: {default})',
    )


def list_options(parser: Any, limit: int = 0) -> None:
    """Add the options of every list.

    :param limit: how many rows are printed unless asked otherwise; 0: all
    """
    parser.add_argument(
        '-f',
        '--format',
        choices=LIST_FORMATS,
        default='table',
        help='how to print it: csv has a heading, value has none, and '
        'spaces between the columns (default: table)',
    )
    parser.add_argument(
        '-c',
        '--columns',
        action='append',
        metavar='NAME[,NAME...]',
        help='only these columns, in this order; may be given several times',
    )
    parser.add_argument(
        '--sort',
        action='append',
        metavar='NAME[:desc]',
        help='by this column; may be given several times, the first counts '
        'most',
    )
    parser.add_argument(
        '--limit',
        type=natural,
        default=limit,
        metavar='N',
        help='at most so many rows, the first after sorting; 0: all '
        f'(default: {limit})',
    )


def natural(text: str) -> int:
    """Return the number that a text says.

    :raises ArgumentTypeError: it is no whole number, or below 0
    """
    if not text.isascii() or not text.isdecimal():
        raise argparse.ArgumentTypeError(f'{text}: not a number from 0')
    return int(text)


def seconds(text: str) -> float:
    """Return a time: a number of seconds, or one with s, m, h or d.

    :raises ArgumentTypeError: it is neither, or not above 0
    """
    factor = _UNITS.get(text[-1:], 0)
    try:
        found = float(text[:-1]) * factor if factor else float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < _LONGEST_S:
        raise argparse.ArgumentTypeError(
            f'{text}: not a time such as 30, 90s, 15m, 6h or 2d'
        )
    return found


def positive(text: str) -> int:
    """Return the number that a text says.

    :raises ArgumentTypeError: it is no whole number, below 1, or too large
    """
    if _DIGITS.fullmatch(text) is None or not int(text):
        raise argparse.ArgumentTypeError(
            f'{text[:80]}: not a number from 1 to 999999999'
        )
    return int(text)


def uuid(text: str) -> str:
    """Return a text that is a UUID, with or without dashes.

    :raises ArgumentTypeError: it is none
    """
    if not _UUID.fullmatch(text):
        raise argparse.ArgumentTypeError(f'{text}: not a UUID')
    return text


def pair(text: str) -> str:
    """Return a text that has a key, an equals sign, and perhaps a value.

    :raises ArgumentTypeError: it has not
    """
    if text.find('=') < 1:
        raise argparse.ArgumentTypeError(f'expected KEY=VALUE, got {text}')
    return text


def past(text: str) -> timedelta | datetime:
    """Return an age, or a date or time, which is UTC unless it says more.

    :raises ArgumentTypeError: it is neither
    """
    try:
        if found := _AGE.fullmatch(text):
            return timedelta(seconds=float(found[1]) * _UNITS[found[2]])
        moment = datetime.fromisoformat(text)
    except (OverflowError, ValueError):
        raise argparse.ArgumentTypeError(
            f'{text!a} is neither a time such as 2026-11-01 or '
            '2026-11-01T12:00 nor an age such as 30d, 12h or 90m'
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


_UNITS = {'s': 1, 'm': 60, 'h': 3600, 'd': 86400}
_LONGEST_S = 1e9
_DIGITS = re.compile(r'[0-9]{1,9}')
_AGE = re.compile(r'(\d+(?:\.\d+)?)([dhm])', re.ASCII)
_UUID = re.compile(r'[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}')
