"""A daemon as a process of its own."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection

from tests.support.failures import Output
from tests.support.waiting import LIMIT_S, NotInTime

# A process that has imported what a daemon imports, which takes most of its
# start, and forks one daemon after the other.
_FORKS = multiprocessing.get_context('forkserver')
_FORKS.set_forkserver_preload(
    ['scheduler_service.rpc', 'scheduler_service.cmd.daemon']
)
# How long a daemon has for a report; one that hangs may write none.
_REPORT_S = 15.0


def on_topic(topic: str) -> str:
    """Return the lines of a configuration that name a topic."""
    return f'[scheduler]\ntopic = {topic}\n'


class Forked:
    """A daemon that was forked: as :class:`subprocess.Popen` to its users."""

    def __init__(
        self, config: pathlib.Path, output: int, cwd: str = '.', **env: str
    ) -> None:
        """Start it.

        :param output: the descriptor that it writes to
        :param env: variables beside those of this process
        """
        with Connection(os.dup(output), readable=False) as passed:
            self._process = _FORKS.Process(
                target=_serve,
                args=(config, passed, cwd, {**os.environ, **env}),
                daemon=True,
            )
            self._process.start()
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (status := self.poll()) is None:
            raise subprocess.TimeoutExpired('scheduler-service', timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _serve(
    config: pathlib.Path, output: Connection, cwd: str, env: dict[str, str]
) -> None:
    """Be a daemon."""
    from scheduler_service.cmd import service

    os.setsid()
    for stream in (sys.stdout, sys.stderr):
        os.dup2(output.fileno(), stream.fileno())
        stream.reconfigure(line_buffering=True)
    output.close()
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv = ['scheduler-service', '--config-file', str(config)]
    sys.exit(service.main())


@dataclasses.dataclass
class Process:
    """A daemon's process, and the lines it has written so far."""

    popen: subprocess.Popen[bytes] | Forked
    output: int
    lines: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._follow, daemon=True)
        self._reader.start()
        self._shown = Output(
            f'daemon {self.popen.pid}',
            lambda: ''.join(self.lines),
            self.report,
        )

    def wait_for(self, text: str) -> str:
        """Wait for a line with *text*; return it."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            ended = self.popen.poll() is not None
            if ended:
                self._reader.join(LIMIT_S)
            for line in list(self.lines):
                if text in line:
                    return line
            if ended:
                break
            time.sleep(0.02)
        raise NotInTime(f'no "{text}" in: {"".join(self.lines)[-3000:]}')

    def count(self, text: str) -> int:
        """Return how many lines have *text*."""
        return sum(text in line for line in self.lines)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; return the exit status."""
        self.popen.send_signal(number)
        try:
            return self.popen.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise NotInTime('it has not ended') from None

    def report(self) -> str:
        """Have it write what its threads do; return that."""
        if self.popen.poll() is not None:
            return 'It has ended.'
        start = seen = len(self.lines)
        self.popen.send_signal(signal.SIGUSR2)
        deadline = time.monotonic() + _REPORT_S
        while time.monotonic() < deadline:
            time.sleep(0.5)
            if start < seen == len(self.lines):
                break
            seen = len(self.lines)
        return ''.join(self.lines[start:])

    def remove(self) -> None:
        """Kill it, unless it has ended; wait until all lines are read."""
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
        self._reader.join(LIMIT_S)
        self._shown.end()

    def _follow(self) -> None:
        with open(self.output, errors='replace') as lines:
            for line in lines:
                self.lines.append(line)


def launch(
    config: pathlib.Path,
    program: pathlib.Path | None = None,
    python: pathlib.Path | str = '',
    cwd: str = '.',
    module: str = '',
    **env: str,
) -> Process:
    """Start a daemon with a configuration file and more environment.

    Unless it is said what to run, it is forked.

    :param program: of an installed package
    :param python: the interpreter, of an environment with the package
    :param cwd: the folder to start it in
    :param module: that runs the daemon, without *program*
    """
    output, written = os.pipe()
    try:
        if not (program or python or module):
            return Process(Forked(config, written, cwd, **env), output)
        words: list[str | pathlib.Path] = [
            python or sys.executable, '-u',
            '-m', module or 'scheduler_service.cmd.service',
        ]  # fmt: skip
        if program:
            words = [program]
        popen = subprocess.Popen(
            [*words, '--config-file', str(config)],
            stdout=written, stderr=written, env={**os.environ, **env}, cwd=cwd,
            # As a service manager does it. A queue manager reads when the
            # leader of its process group started.
            start_new_session=True,
        )  # fmt: skip
        return Process(popen, output)
    finally:
        os.close(written)
