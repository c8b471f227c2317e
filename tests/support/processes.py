"""A daemon as a process of its own."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time


def on_topic(topic: str) -> str:
    """Return the lines of a configuration that name a topic."""
    return f'[scheduler]\ntopic = {topic}\n'


@dataclasses.dataclass
class Process:
    """A daemon's process, and the lines it has written so far."""

    popen: subprocess.Popen[str]
    lines: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._follow, daemon=True)
        self._reader.start()

    def wait_for(self, text: str, seconds: float = 40.0) -> str:
        """Wait for a line with *text*; return it."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if text in line:
                    return line
            if self.popen.poll() is not None:
                # The thread that reads may be behind.
                time.sleep(0.2)
                if not any(text in line for line in self.lines):
                    break
            time.sleep(0.02)
        raise AssertionError(f'no "{text}" in: {"".join(self.lines)[-3000:]}')

    def count(self, text: str) -> int:
        """Return how many lines have *text*."""
        return sum(text in line for line in self.lines)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; return the exit status."""
        self.popen.send_signal(number)
        return self.popen.wait(40)

    def remove(self) -> None:
        """Kill it, unless it has ended; wait until all lines are read."""
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()
        self._reader.join(10)

    def _follow(self) -> None:
        assert self.popen.stdout is not None
        with self.popen.stdout as lines:
            for line in lines:
                self.lines.append(line)


def launch(
    config: pathlib.Path,
    program: pathlib.Path | None = None,
    python: pathlib.Path | str = sys.executable,
    cwd: str | None = None,
    module: str = 'scheduler_service.cmd.service',
    **env: str,
) -> Process:
    """Start a daemon with a configuration file and more environment.

    :param program: of an installed package; None: that of this tree
    :param python: the interpreter, of an environment with the package
    :param cwd: the folder to start it in
    :param module: that runs the daemon, without *program*
    """
    words: list[str | pathlib.Path] = [python, '-u', '-m', module]
    if program is not None:
        words = [program]
    popen = subprocess.Popen(
        [*words, '--config-file', str(config)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, **env}, cwd=cwd,
        # As a service manager does it. A queue manager reads when the leader
        # of its process group started.
        start_new_session=True,
    )  # fmt: skip
    return Process(popen)
