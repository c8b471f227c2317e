"""What the report of a failed test shows beside its traceback.

That is the last lines of each server and daemon that ran, what all threads do
if something was waited for in vain, and a command that repeats the test.
"""

from __future__ import annotations

import os
import pathlib
import queue
import random
import shlex
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator

from tests.support.waiting import NotInTime

# Of all that tests choose at random. A whole run has one; each test begins
# with the same one wherever it runs.
_VARIABLE = 'SCHEDULER_TEST_SEED'
SEED = int(
    os.environ.setdefault(
        _VARIABLE, str(random.SystemRandom().randrange(2**32))
    )
)
_SHOWN_LINES = 25
_READ_BYTES = 10_000
_IN_VAIN = NotInTime, TimeoutError, subprocess.TimeoutExpired, queue.Empty


class Output:
    """What a process writes, for the reports of tests that fail.

    :param name: of the process
    :param read: returns what it has written
    :param ask: has it say what its threads do; returns that
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], str],
        ask: Callable[[], str] | None = None,
    ) -> None:
        self.name = name
        self.ask = ask
        self._read = read
        _outputs.append(self)

    def last_lines(self) -> str:
        """Return the end of what it has written."""
        return '\n'.join(self._read().splitlines()[-_SHOWN_LINES:])

    def end(self) -> None:
        """Keep its last lines until another test begins."""
        if self in _outputs:
            _outputs.remove(self)
            _ended[self.name] = self.last_lines()


_outputs: list[Output] = []
# The last lines of processes that ended during this test, by name.
_ended: dict[str, str] = {}


def tail(*paths: pathlib.Path) -> str:
    """Return the ends of files, if they are there."""
    found = []
    for path in paths:
        if path.is_file():
            with path.open('rb') as file:
                file.seek(max(0, path.stat().st_size - _READ_BYTES))
                found.append(file.read().decode(errors='replace'))
    return ''.join(found)


def begin(test: str) -> None:
    """Forget what belongs to another test; choose as this one always does."""
    _ended.clear()
    random.seed(f'{SEED} {test}')


def sections(test: str, fault: BaseException) -> Iterator[tuple[str, str]]:
    """Yield what a report shows: titles and texts."""
    yield (
        'Repeat',
        f'{_VARIABLE}={SEED} {shlex.quote(sys.executable)} -m pytest '
        f'{shlex.quote(test)}',
    )
    running = {one.name: one.last_lines() for one in _outputs}
    for name, text in (_ended | running).items():
        yield f'Last lines of {name}', text
    # The latter is what pytest-timeout raises. A daemon imports this module,
    # and no pytest.
    if isinstance(fault, _IN_VAIN) or type(fault).__name__ == 'Failed':
        yield 'Threads', _stacks()
        for one in [one for one in _outputs if one.ask]:
            yield f'Threads of {one.name}', one.ask()


def _stacks() -> str:
    """Return what each thread of this process does, but for this one."""
    frames = sys._current_frames()
    return '\n'.join(
        f'{thread.name}:\n{"".join(traceback.format_stack(frames[number]))}'
        for thread in threading.enumerate()
        if (number := thread.ident) in frames
        and thread is not threading.current_thread()
    )
