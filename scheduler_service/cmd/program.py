"""Main functions of programs: standard streams, error lines, threads.

Called by the main thread. Imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import pathlib
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from scheduler_service import errors
from scheduler_service.texts import printable
from scheduler_service.worker import start_thread

T = TypeVar('T')
Main = Callable[..., int]
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_INTERRUPTED = 130
# Errors of standard output: files that were opened have names.
_OF_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
# How many errors of a document are printed.
_MAX_DETAILS = 200


class WrongUsage(Exception):
    """An argument of the command line that the command itself refuses.

    The program ends as for an argument that the parser refuses.
    """


def entry_point(failed: int) -> Callable[[Main], Main]:
    """Return a decorator for the main function of a program.

    Standard output is flushed before the function returns. If that fails, or
    another file is missing, the program ends with a line that says why; an
    interrupt ends it without a line.

    :param failed: the exit status after an error
    """

    def attempt(main: Main, argv: Sequence[Any]) -> int:
        _replace_closed()
        _buffer_output()
        try:
            if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                return main(*argv)
            finally:
                sys.stdout.flush()
        except OSError as fault:
            if not isinstance(fault, BrokenPipeError):
                print(error_line(fault), file=sys.stderr)
            drop_output()
        except KeyboardInterrupt:
            return _INTERRUPTED
        return failed

    def decorate(main: Main) -> Main:
        @functools.wraps(main)
        def run(*argv: Sequence[str]) -> int:
            status = attempt(main, argv)
            if not argv and threading.active_count() > 1:
                # The interpreter would join threads that wait for a server.
                sys.stderr.flush()
                os._exit(status)
            return status

        return run

    return decorate


def _replace_closed() -> None:
    """Open closed standard streams, whose numbers would be used again."""
    for name, mode in (('stdin', 'r'), ('stdout', 'w'), ('stderr', 'w')):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def _buffer_output() -> None:
    """Buffer standard output, also where PYTHONUNBUFFERED is set.

    Without a buffer, what a full disk does not take is dropped silently.
    """
    if isinstance(getattr(sys.stdout, 'buffer', None), io.RawIOBase):
        sys.stdout = open(  # noqa: SIM115
            sys.stdout.fileno(), 'w', encoding=sys.stdout.encoding,
            errors=sys.stdout.errors, closefd=False,
        )  # fmt: skip


def release(name: str) -> str:
    """Return the name of a program, and the installed release."""
    # Takes as long as all else that a help text needs.
    from importlib import metadata

    return f'{name} {metadata.version("scheduler-service")}'


def write_file(path: pathlib.Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file beside its place, and rename it: it is never cut.

    :param mode: permissions, before the umask
    :raises OSError: the file cannot be written; an older one stays
    """
    beside = path.with_name(f'.{path.name}.{os.getpid()}')
    try:
        with open(os.open(beside, _NEW_FILE, mode), 'wb') as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as fault:
        beside.unlink(missing_ok=True)
        raise type(fault)(fault.errno, fault.strerror, str(path)) from None


def drop_output() -> None:
    """Drop unwritten output, so that flushing it does not fail again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def error_line(fault: BaseException) -> str:
    """Return an error as a line: its name, a colon, what to do."""
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
    """Return the errors of a document, if it has several."""
    facts = getattr(fault, 'facts', {})
    lines = [_one_line(text) for text in facts.get('problems', ())]
    more = len(lines) - _MAX_DETAILS
    if more > 0:
        return [*lines[:_MAX_DETAILS], f'and {more} more']
    return lines


def _one_line(text: str) -> str:
    return printable(' '.join(text.split()))


def os_error_text(fault: OSError) -> str:
    """Return the reason of an error, with the file's name if there is one."""
    text = fault.strerror or str(fault)
    if fault.filename is not None:
        return f'{fault.filename}: {text}'
    return f'standard output: {text}' if fault.errno in _OF_OUTPUT else text


def run_within(seconds: float, work: Callable[[], T], name: str) -> T:
    """Return the result of work on a daemon thread.

    :raises TimeoutError: the work takes longer, and goes on
    """
    return start_thread(work, name).result(seconds)
