"""``scheduler-quickstart --serve``: a cloud to look at in a browser."""

from __future__ import annotations

import pathlib
import re
import signal
import subprocess
import sys
import urllib.request

from tests.support.waiting import LIMIT_S, wait_until

# As the program does, with fewer hosts and decisions.
_PROGRAM = """
import signal, sys
# A shell has background commands ignore interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
from scheduler_service.cmd import quickstart
quickstart._HOSTS, quickstart._DECISIONS = 100, 200
sys.exit(quickstart.main(sys.argv[1:]))
"""


def test_a_cloud_with_decisions_is_served_until_an_interrupt(
    tmp_path: pathlib.Path,
) -> None:
    process = subprocess.Popen(
        [sys.executable, '-c', _PROGRAM, '--folder', tmp_path, '--serve'],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        told = []
        for line in process.stdout:
            told.append(line)
            if found := re.search(r'Open (http://127\.0\.0\.1:\d+)/', line):
                break
        assert found, ''.join(told)

        def page(path: str) -> str:
            with urllib.request.urlopen(
                found[1] + path, timeout=LIMIT_S
            ) as reply:
                return str(reply.read(), 'utf-8')

        for path in ('/', '/cloud'):
            assert '</html>' in page(path)
        # Decisions are stored soon after their answers.
        for text in (' by RamFilter', 'project-3'):
            wait_until(
                lambda text=text: (
                    text in page('/decisions?outcome=refused&limit=99')
                )
            )
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, 'Traceback' in rest) == (0, False), rest
    finally:
        process.kill()
        process.communicate()
