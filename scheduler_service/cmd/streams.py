"""The standard streams of a program, and how it ends when one is lost.

Called by the main thread. Imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

_INTERRUPTED = 130


class Main(Protocol):
    """The main function of a program."""

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        """Return the exit status; None: the arguments are the process's."""


def program(failed: int) -> Callable[[Main], Main]:
    """Return what makes a function the main function of a program.

    What it prints is written before it returns. It ends with a line that
    says why where that cannot be done, or another file is missing, and
    without one when it is interrupted.

    :param failed: the exit status where it cannot go on
    """

    def decorate(main: Main) -> Main:
        @functools.wraps(main)
        def run(argv: Sequence[str] | None = None) -> int:
            _replace_closed()
            try:
                try:
                    return main(argv)
                finally:
                    sys.stdout.flush()
            except BrokenPipeError:
                drop_output()
            except OSError as fault:
                from scheduler_service.cmd import faults

                print(faults.line(fault), file=sys.stderr)
                drop_output()
            except KeyboardInterrupt:
                return _INTERRUPTED
            return failed

        return run

    return decorate


def _replace_closed() -> None:
    """Have what is written to a closed standard stream go nowhere.

    The next file or connection would get its number, too.
    """
    for name, mode in (('stdin', 'r'), ('stdout', 'w'), ('stderr', 'w')):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def drop_output() -> None:
    """Have what is not written yet go nowhere, instead of failing again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
