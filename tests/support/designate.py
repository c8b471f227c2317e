"""A designate-central of the index, and its CentralAPI, as processes."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from typing import Any

from tests.support import interop
from tests.support.paths import ROOT
from tests.support.waiting import LIMIT_S, wait_until

_CALLER = ROOT / 'tests' / 'interop' / 'designate_caller.py'


class Refused(Exception):
    """An error of Designate.

    :ivar name: of its class
    :ivar code: its HTTP status
    """

    def __init__(self, name: str, code: int, text: str) -> None:
        super().__init__(f'{name}: {text}')
        self.name = name
        self.code = code
        self.text = text


class Central:
    """A designate-central that has our filter, and a caller of it."""

    def __init__(self, folder: pathlib.Path, transport_url: str) -> None:
        python = interop.openstack()
        self._bin = python / 'bin'
        self._folder = folder
        self._processes: list[subprocess.Popen[str]] = []
        self._environ = {**os.environ, 'PYTHONPATH': str(folder / 'ours')}
        self._config = folder / 'designate.conf'
        self._install(python)
        self._config.write_text(
            '[DEFAULT]\ncontrol_exchange = designate\nuse_stderr = true\n'
            f'state_path = {folder}\n'
            f'transport_url = {transport_url}\n'
            '[service:central]\nworkers = 1\nthreads = 4\n'
            'scheduler_filters = scheduler_service\n'
            '[storage:sqlalchemy]\n'
            f'connection = sqlite:///{folder}/designate.sqlite?timeout=60\n'
            '[scheduler_service]\ntimeout = 3\n'
        )

    def _install(self, folder: pathlib.Path) -> None:
        """Install our distribution beside the environment that is kept."""
        copy = self._folder / 'copy'
        shutil.copytree(ROOT / 'designate_scheduler_service', copy)
        interop.install(
            folder, '--no-deps', '--no-build-isolation', '--target',
            str(self._folder / 'ours'), str(copy),
        )  # fmt: skip

    def start(self) -> None:
        """Make the tables, start the service and wait until it answers."""
        subprocess.run(
            [*self._command("designate-manage"), "database", "sync"],
            check=True, env=self._environ, capture_output=True,
        )  # fmt: skip
        with self.log.open('w') as log:
            self._run(self._command('designate-central'), log)
        python = str(self._bin / 'python')
        with (self._folder / 'caller.log').open('w') as log:
            self._caller = self._run(
                [python, str(_CALLER), '--config-file', str(self._config)],
                log,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        wait_until(self._is_ready)

    @property
    def log(self) -> pathlib.Path:
        """The log of designate-central."""
        return self._folder / 'central.log'

    def _is_ready(self) -> bool:
        """Whether the service answers; a call before that is lost."""
        try:
            self.call('ready', roles=['admin'])
        except Refused as error:
            if error.name != 'MessagingTimeout':
                raise
            return False
        return True

    def call(self, verb: str, **args: Any) -> Any:
        """Make a call of ``designate_caller``; return its result.

        :raises Refused: Designate raised an error
        """
        assert self._caller.stdin is not None
        assert self._caller.stdout is not None
        self._caller.stdin.write(json.dumps({'verb': verb, **args}) + '\n')
        self._caller.stdin.flush()
        for line in self._caller.stdout:
            if line.startswith('ANSWER '):
                answer = json.loads(line.removeprefix('ANSWER '))
                if 'error' in answer:
                    raise Refused(**answer['error'])
                return answer['result']
        raise AssertionError((self._folder / 'caller.log').read_text()[-3000:])

    def imported(self, attributes: dict[str, str], **who: Any) -> Any:
        """Import a zone with attributes; return what became of it."""
        name = f'i{uuid.uuid4().hex[:8]}.example.'
        text = (
            f'$ORIGIN {name}\n{name} 300 IN SOA ns.example. a.example.org. '
            f'1 3600 600 86400 300\nwww.{name} 300 IN A 192.0.2.1\n'
        )
        started = self.call(
            'import_zone', text=text, attributes=attributes, **who
        )
        found: dict[str, Any] = {}

        def done() -> bool:
            found.update(self.call('imported', import_id=started))
            return found['status'] != 'PENDING'

        wait_until(done)
        return found

    def stop(self) -> None:
        """End the processes."""
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _command(self, program: str) -> list[str]:
        return [str(self._bin / program), '--config-file', str(self._config)]

    def _run(
        self, command: list[str], log: Any, **pipes: Any
    ) -> subprocess.Popen[str]:
        pipes.setdefault('stdout', log)
        process = subprocess.Popen(
            command, stderr=log, text=True, env=self._environ, **pipes
        )
        self._processes.append(process)
        return process


@contextlib.contextmanager
def central(folder: pathlib.Path, transport_url: str) -> Iterator[Central]:
    """Run designate-central on SQLite.

    :param transport_url: of a virtual host of RabbitMQ
    """
    made = Central(folder, transport_url)
    try:
        made.start()
        yield made
    finally:
        made.stop()
