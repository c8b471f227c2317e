"""What commands of ``scheduler-manage`` have in common: classes of cliff.

Imports nothing heavy.
"""

from __future__ import annotations

import argparse
import functools
import io
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from cliff import command, lister

from scheduler_service import texts
from scheduler_service.cmd.program import release

# Adds an argument to a parser.
Part = Callable[[Any], Any]
_DIGITS = re.compile(r'[0-9]{1,9}')
_UNKNOWN_WORD = re.compile(
    r"invalid choice: '(.*?)' \(choose from (.*)\)$", re.S
)
_UNKNOWN_OPTION = re.compile(r'unrecognized arguments:.*? (--?[\w-]+)', re.S)


class Version(argparse.Action):
    """Prints the release, which is looked up only when it is needed."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(nargs=0, **kwargs)

    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> None:
        print(release(parser.prog))
        parser.exit()


def argument(names: str, text: str, **how: Any) -> Part:
    """Return an argument of a command, as ``add_argument`` takes it.

    :param names: of an option or a positional argument, with spaces between
    """
    return lambda parser: parser.add_argument(*names.split(), help=text, **how)


def number_from(least: int) -> Callable[[str], int]:
    """Return a type of arguments: whole numbers from *least* on."""

    def number(text: str) -> int:
        if _DIGITS.fullmatch(text) is None or int(text) < least:
            raise argparse.ArgumentTypeError(
                f'{text[:80]}: not a number from {least} to 999999999'
            )
        return int(text)

    return number


def refuse(
    parser: argparse.ArgumentParser, options: Iterable[str], message: str
) -> NoReturn:
    """Print an error with a similar word for an unknown one; end with 2.

    :param options: that may be meant beside the parser's
    """
    if match := _UNKNOWN_WORD.search(message):
        message += texts.nearest(match[1], re.findall(r'[\w-]+', match[2]))
    elif match := _UNKNOWN_OPTION.search(message):
        known = {*parser._option_string_actions, *options}
        message += texts.nearest(match[1], sorted(known))
    parser.print_usage(sys.stderr)
    parser.exit(2, texts.printable(f'{parser.prog}: error: {message}') + '\n')


class Command(command.Command):
    """A command whose work is a function of (arguments, configuration).

    :ivar words: what is typed
    :ivar work: module of ``cmd.commands`` and function, imported when it runs
    :ivar status: exit status of a command that prints what it returns
    :ivar changes: whether it changes something, by its arguments
    """

    words = ''
    work = ''
    arguments: tuple[Part, ...] = ()
    status = 0
    changes: Callable[[argparse.Namespace], bool] = staticmethod(
        lambda args: False
    )
    app: Any

    def get_epilog(self) -> str:
        return ''

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser; it names what an unknown word may mean."""
        parser = super().get_parser(prog_name)
        for add in self.arguments:
            add(parser)
        others = self.app.parser._option_string_actions
        parser.error = functools.partial(  # type: ignore[method-assign]
            refuse, parser, others
        )
        return parser

    def take_action(self, args: argparse.Namespace) -> Any:
        return self.app.work(self.work, args, self.changes(args))


class Lister(Command, lister.Lister):
    """A command that prints rows; its work returns a ``Listing``."""

    limit = 0
    # By all columns, also those that are not printed.
    need_sort_by_cliff = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--limit', type=number_from(0), default=self.limit, metavar='N',
            help='largest number of rows, the first after sorting; 0: all '
            f'(default: {self.limit})',
        )  # fmt: skip
        parser.set_defaults(print_empty=True, quote_mode='minimal')
        known = parser._option_string_actions
        known['--quote'].help = 'when to include quotes (default: minimal)'
        known['--sort-column'].help = 'by this column; the first counts most'
        return parser

    def take_action(self, args: argparse.Namespace) -> Any:
        from scheduler_service.cmd import output

        listing = super().take_action(args)
        self.status = listing.status
        columns, rows, self._remark = output.arranged(listing, args)
        return columns, rows

    def produce_output(
        self, args: argparse.Namespace, columns: Any, rows: Any
    ) -> int:
        """Print rows; of what a terminal obeys, JSON has only DEL by now."""
        text = io.StringIO()
        # Names of SQL are a kind of text that YAML cannot write.
        names = [*map(str, columns)]
        self.formatter.emit_list(names, rows, text, args)
        print(text.getvalue().replace('\x7f', r'\u007f'), end='')
        return 0

    def run(self, args: argparse.Namespace) -> int:
        """Print the rows, and on standard error how many were left out."""
        super().run(args)
        if self._remark:
            sys.stdout.flush()
            print(self._remark, file=sys.stderr)
        return self.status
