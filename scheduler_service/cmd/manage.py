"""``scheduler-manage``: the operator's commands.

The program is one of cliff. The work of a command is a function in a module of
``commands``, imported when it is run. It runs on the main thread, or with
``--timeout`` on a thread that the process does not join.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import importlib
import io
import math
import shlex
import sys
import time
import traceback
from collections.abc import Sequence
from concurrent import futures
from typing import Any, NoReturn

from cliff import app, commandmanager

from scheduler_service import errors, texts
from scheduler_service.cmd import parser, program
from scheduler_service.cmd.parser import Version, argument, refuse
from scheduler_service.cmd.program import WrongUsage

# Share of --timeout for connecting to the database.
_SHARE = 0.9
# A command reads many rows, keeps them, and ends: collecting garbage among
# them again and again would take a quarter of its time.
_OBJECTS_BETWEEN_COLLECTIONS = 200_000


class App(app.App):
    """The program: its options, and how it runs a command."""

    NAME = 'scheduler-manage'
    options: argparse.Namespace

    def __init__(self) -> None:
        manager = commandmanager.CommandManager('')
        for words, command in parser.COMMANDS.items():
            manager.add_command(words, command)
        text = 'Operate the scheduler: its database, hosts and claims.'
        super().__init__(text, None, manager, deferred_help=True)

    def build_option_parser(
        self, description: Any, version: Any, argparse_kwargs: Any = None
    ) -> argparse.ArgumentParser:
        """Return the parser of what may stand before and after a command."""
        built = argparse.ArgumentParser(
            self.NAME, '%(prog)s [options] NOUN VERB [arguments]', description,
            add_help=False, allow_abbrev=False,
        )  # fmt: skip
        several = '; may be given several times'
        for add in (
            argument('-h --help', 'print this, or the help of a command',
                     action='store_true', dest='deferred_help'),
            argument('--config-file', f'configuration file{several}',
                     action='append', default=[], metavar='PATH'),
            argument('--config-dir', f'folder of configuration files{several}',
                     action='append', default=[], metavar='DIR'),
            argument('--version', 'print the release, and end',
                     action=Version),
            argument('--timeout', 'give up after this time, which also limits '
                     'connecting (default: no limit, but 3 s to connect to '
                     'the database and 10 s to the broker)',
                     type=parser.seconds, metavar='SECONDS'),
            argument('--debug', 'print where in the program an error occurred',
                     action='store_true'),
        ):  # fmt: skip
            add(built)
        built.error = functools.partial(  # type: ignore[method-assign]
            refuse, built, ()
        )
        return built

    def configure_logging(self) -> None:
        """Leave it to :func:`_configuration`."""

    def print_help_if_requested(self) -> None:
        """Print the commands with what they are for; load none of them."""
        if self.options.deferred_help:
            self.parser.print_help()
            print('\ncommands:')
            for words, command in parser.COMMANDS.items():
                print(f'  {words:<24} {command.__doc__}')
            raise SystemExit

    def interact(self) -> NoReturn:
        self.parser.error('name a command; --help lists them')

    def run_subcommand(self, argv: list[str]) -> int:
        try:
            found, words, rest = self.command_manager.find_command(argv)
        except ValueError:
            self.parser.error(self._unknown(argv))
        self._line = shlex.join([self.NAME, *argv])
        command = found(self, self.options)
        built = command.get_parser(f'{self.NAME} {words}')
        args = built.parse_args(rest)
        for name, value in vars(self.options).items():
            vars(args).setdefault(name, value)
        try:
            return command.run(args)
        except WrongUsage as fault:
            with contextlib.suppress(SystemExit):
                built.error(str(fault))
            return 2
        except Exception as fault:
            if self.options.debug:
                traceback.print_exc()
            if isinstance(fault, OSError):
                raise
            print(program.error_line(fault), file=sys.stderr)
            for detail in program.error_details(fault):
                print(f'  {detail}', file=sys.stderr)
            return 1

    def _unknown(self, argv: Sequence[str]) -> str:
        """Return what is wrong with the words of a command."""
        commands = [words.partition(' ') for words in parser.COMMANDS]
        verbs = sorted(verb for noun, _, verb in commands if noun == argv[0])
        if not verbs:
            nouns = sorted({noun for noun, _, _ in commands})
            return f'no command {argv[0]}{texts.nearest(argv[0], nouns)}'
        near = texts.nearest(argv[1], verbs) if argv[1:] else ''
        return f'{argv[0]}: expected one of {", ".join(verbs)}{near}'

    def work(self, path: str, args: Any, changes: bool) -> Any:
        """Return what the function of a command returns.

        :param changes: whether it changes something, which is recorded
        """
        name, _, function = path.partition(':')
        module = importlib.import_module(f'{__package__}.commands.{name}')
        command = getattr(module, function)
        conf = _configuration(args)

        def done() -> Any:
            began = time.monotonic()
            result = command(args, conf)
            if changes:
                from scheduler_service.cmd import connections

                connections.record_command(conf, self._line, began)
            return result

        if args.timeout is None:
            return done()
        # A little less than all, so that the command can name a server that
        # does not answer.
        to_connect = max(2, math.floor(args.timeout * _SHARE))
        conf.set_override('connect_timeout', to_connect, 'database')
        try:
            return program.run_within(args.timeout, done, 'command')
        except futures.TimeoutError:
            from scheduler_service.cmd import connections

            raise errors.TooLate(
                f'Not done within {args.timeout:g} s (--timeout); '
                f'{connections.addresses(conf)}. A change that was sent to a '
                'server may still be made: check before you repeat it'
            ) from None

    def parsers(self) -> dict[str, argparse.ArgumentParser]:
        """Return the parser of each command, by its words."""
        return {
            words: command(self, None).get_parser(f'{self.NAME} {words}')
            for words, command in parser.COMMANDS.items()
        }


@program.entry_point(failed=1)
def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status.

    :return: 0: done; 1: it failed, or found differences or errors; 2: the
        command line is wrong; 130: interrupted
    """
    if argv is None:
        gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
        argv = sys.argv[1:]
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What the terminal cannot encode.
        sys.stdout.reconfigure(errors='backslashreplace')
    return App().run(list(argv))


def _configuration(args: Any) -> Any:
    from scheduler_service.cmd import adapters, log_levels

    log_levels.set_up_command(args.debug)
    return adapters.load(args.config_file, args.config_dir)


if __name__ == '__main__':
    sys.exit(main())
