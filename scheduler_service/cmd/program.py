"""How a program ends: standard streams, errors in one line, threads.

Called by the main thread. Imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from scheduler_service import errors

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar('T')
_INTERRUPTED = 130
_MEANING = {
    errno.ENOSPC: 'the disk is full',
    errno.EDQUOT: 'the quota of the disk is used up',
    errno.EROFS: 'the file system is read-only',
    errno.EACCES: 'this user may not do that',
    errno.EPERM: 'this user may not do that',
    errno.ENOENT: 'there is no such file or folder',
    errno.EISDIR: 'that is a folder',
}
# How many errors of a document are printed.
_MAX_DETAILS = 200
# Control characters would move the cursor of the terminal, or worse; others
# turn the direction in which a line is read.
_TURNING = (0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_CONTROLS = {
    code: repr(chr(code))[1:-1]
    for code in (*range(32), *range(127, 160), *_TURNING)
}


class WrongUsage(Exception):
    """A word of the command line that only the command itself can judge.

    The program ends as it does where the parser refuses a word.
    """


class Main(Protocol):
    """The main function of a program."""

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        """Return the exit status; None: the arguments are the process's."""


def entry_point(failed: int) -> Callable[[Main], Main]:
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
                print(error_line(fault), file=sys.stderr)
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


def printable(text: str) -> str:
    """Return a text on one line that cannot move the cursor of a terminal."""
    return text if text.isprintable() else text.translate(_CONTROLS)


def error_line(fault: BaseException) -> str:
    """Return an error as one line: its name, a colon, what to do."""
    if isinstance(fault, errors.SchedulerError):
        text = str(fault.args[0]) if fault.args else ''
        return f'{fault.name}: {_one_line(text)}'
    if isinstance(fault, OSError):
        return f'OSError: {_one_line(os_error_text(fault))}'
    text = _one_line(str(fault))[:300]
    return (
        f'{type(fault).__name__}: {text} (this was not expected; with '
        '--debug the command prints where it was met)'
    )


def error_details(fault: BaseException) -> list[str]:
    """Return all that is wrong with a document, where that is several."""
    facts = getattr(fault, 'facts', {})
    lines = [_one_line(text) for text in facts.get('problems', ())]
    more = len(lines) - _MAX_DETAILS
    if more > 0:
        return [*lines[:_MAX_DETAILS], f'and {more} more']
    return lines


def _one_line(text: str) -> str:
    return printable(' '.join(text.split()))


def os_error_text(fault: OSError) -> str:
    """Return what is wrong with a file, with its name if it has one."""
    meaning = _MEANING.get(fault.errno or 0)
    reason = fault.strerror or str(fault)
    text = f'{meaning} ({reason})' if meaning else reason
    if fault.filename is not None:
        return f'{fault.filename}: {text}'
    # Files that are opened have a name, connections have no disk.
    return f'standard output: {text}' if meaning else text


def start_thread(work: Callable[[], T], name: str) -> Future[T]:
    """Run work on a daemon thread; return the future of its result.

    The end of the process does not wait for it.
    """
    from concurrent.futures import Future

    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as fault:
            future.set_exception(fault)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def run_within(seconds: float, work: Callable[[], T], name: str) -> T:
    """Return the result of work on a daemon thread.

    :raises TimeoutError: it takes longer, and goes on
    """
    return start_thread(work, name).result(seconds)
