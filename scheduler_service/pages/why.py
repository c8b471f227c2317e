"""The page that says why a request was decided as it was, on what was then.

``scheduler-manage why`` finds it out, in a process of its own, which runs one
at a time and has a low priority: the daemon's threads do not wait for it.
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
            sys.executable, '-c', _PROGRAM, *files, *folders, 'why',
            '--format=json',
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
        words = [f'--host={host}' for host in sent.values()]
        if not self._running.acquire(blocking=False):
            raise errors.ServiceBusy(
                'Why another request was decided so is being found out, one '
                'at a time: ask again soon'
            )
        try:
            report, remarks = self._run([*words, '--', request_id],
                                        request.is_left)  # fmt: skip
        finally:
            self._running.release()
        return frame.page(
            'why.html', report=report, remarks=remarks.splitlines(),
            host=sent.get('host'), stacks=stacks,
        )  # fmt: skip

    def _run(
        self, words: list[str], is_left: Callable[[], bool]
    ) -> tuple[dict[str, Any], str]:
        """Return the report, and remarks of a line each.

        :param is_left: whether nobody waits any more
        :raises TooLate: nobody does, and the process was killed
        :raises SchedulerError: the error that the command printed
        """
        with subprocess.Popen(
            [*self._command, *words],
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
        if out:
            return msgspec.json.decode(out), remarks
        name, _, text = remarks.strip().rpartition('\n')[2].partition(': ')
        raise errors.from_dict({'name': name, 'message': text, 'facts': {}})
