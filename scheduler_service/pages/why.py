"""Pages that say why a request was decided as it was, and about a host.

``scheduler-manage`` finds it out, in a process of its own, which runs one at a
time and has a low priority: the daemon's threads do not wait for it.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from scheduler_service import errors
from scheduler_service.http.message import HttpRequest, Reply
from scheduler_service.http.v1 import named, parameters
from scheduler_service.model import documents
from scheduler_service.pages.decisions import stacks
from scheduler_service.pages.frame import Frame, without_empty

PATH = '/why/{request_id}'
# Page -> what it is called, and the command.
OF_HOSTS = {
    '/history/{name}': ('What happened to', 'history', 'host'),
    '/drain/{name}': ('Where the instances could go of', 'host', 'drain',
                      '--plan'),
}  # fmt: skip
# The command, which the kernel ends with the daemon, even if that is killed.
_PROGRAM = """
import ctypes, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
from scheduler_service.cmd import manage
sys.exit(manage.main())
"""
_NICE = 19
# How often it is looked whether the client has left, in seconds.
_LOOK_S = 0.1


class Why:
    """Runs the command with the files of the daemon.

    :param conf: parsed options
    """

    def __init__(self, conf: Any) -> None:
        files = [f'--config-file={path}' for path in conf.config_file or ()]
        folders = [f'--config-dir={path}' for path in conf.config_dir or ()]
        self._command = (
            sys.executable, '-c', _PROGRAM, *files, *folders
        )  # fmt: skip
        self._running = threading.Lock()

    def page(self, frame: Frame, request: HttpRequest) -> Reply:
        """Show why a request was decided so, or why not on a host.

        :raises ServiceBusy: it is found out for somebody else
        """
        sent = parameters(without_empty(request, ['host']), 'host')
        documents.check_text(sent)
        bare = dataclasses.replace(request, query='')
        request_id = named(bare, 'request_id')
        for rule in ('show_decision', *(['explain'] if sent else [])):
            frame.api.authorize(request, rule)
        words = ['why', *(f'--host={host}' for host in sent.values())]
        report, remarks = self._run(words, request_id, request.is_left)
        return frame.page(
            'why.html', report=report, remarks=remarks,
            host=sent.get('host'), stacks=stacks,
        )  # fmt: skip

    def of_host(self, frame: Frame, request: HttpRequest) -> Reply:
        """Show what happened to a host, or where its instances could go."""
        name = named(request, 'name')
        frame.api.authorize(request, 'show_host')
        title, *words = OF_HOSTS[f'/{request.path.split("/")[1]}/{{name}}']
        rows, remarks = self._run(words, name, request.is_left)
        return frame.page(
            'list.html', title=f'{title} {name}', rows=rows, remarks=remarks,
            columns=[*rows[0]] if rows else ['at'],
        )  # fmt: skip

    def _run(
        self, words: list[str], subject: str, is_left: Callable[[], bool]
    ) -> tuple[Any, list[str]]:
        """Return what the command prints, and its remarks.

        :param is_left: whether nobody waits any more
        :raises ServiceBusy: it runs for somebody else
        :raises TooLate: nobody does, and the process was killed
        :raises SchedulerError: the error that the command printed
        """
        if not self._running.acquire(blocking=False):
            raise errors.ServiceBusy(
                'Another such question is being answered, one at a time: ask '
                'again soon'
            )
        try:
            with subprocess.Popen(
                [*self._command, *words, '--format=json', '--', subject],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ) as process:
                os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
                while True:
                    try:
                        out, remarks = process.communicate(timeout=_LOOK_S)
                        break
                    except subprocess.TimeoutExpired:
                        if is_left():
                            process.kill()
                            raise errors.TooLate('The page was left') from None
        finally:
            self._running.release()
        if out:
            return msgspec.json.decode(out), remarks.splitlines()
        name, _, text = remarks.strip().rpartition('\n')[2].partition(': ')
        raise errors.from_dict({'name': name, 'message': text, 'facts': {}})
