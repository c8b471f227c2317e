"""The daemon with a recorder, which another process switches.

It takes the arguments of ``scheduler-service``. ``RECORDER`` is the address
on which the other process listens.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from multiprocessing.connection import Client, Connection

from scheduler_service.cmd import service
from tests.support.recording import Recorder


def _obey(conn: Connection, recorder: Recorder) -> None:
    """Call the methods of a recorder that are asked for."""
    with contextlib.suppress(EOFError):
        while True:
            method, *arguments = conn.recv()
            conn.send(getattr(recorder, method)(*arguments))


def main() -> int:
    recorder = Recorder()
    conn = Client(os.environ['RECORDER'], 'AF_UNIX')
    threading.Thread(target=_obey, args=(conn, recorder), daemon=True).start()
    recorder.install()
    return service.main()


if __name__ == '__main__':
    sys.exit(main())
