"""Starts and ends a real Kubernetes control plane: see ``tests.support.kube``.

The programs lie beside the project; where they do not, :func:`missing` says
so, and tests are skipped with that reason.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Iterator

import urllib3

from tests.support.kube import NAMESPACE, THREADS, Cluster
from tests.support.paths import ROOT
from tests.support.waiting import LIMIT_S, wait_until

FOLDER = ROOT.parent / 'shared' / 'kube'
_SCRIPT = FOLDER / 'cluster.sh'


def missing() -> str:
    """Return why there can be no cluster; empty where there can be one."""
    if not _SCRIPT.exists():
        return f'the programs of a control plane are not in {FOLDER}'
    return ''


@contextlib.contextmanager
def cluster(folder: pathlib.Path, roles: bool = False) -> Iterator[Cluster]:
    """Run a control plane in a folder until the block ends.

    :param roles: whether users may do only what roles say
    """
    folder.mkdir(parents=True, exist_ok=True)
    mode = 'RBAC' if roles else 'AlwaysAllow'
    command = ['bash', str(_SCRIPT), 'start', str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S,
        env={'KUBE_AUTHORIZATION': mode, 'PATH': '/usr/bin:/bin'},
    )  # fmt: skip
    try:
        assert done.returncode == 0, done.stderr
        said = dict(
            line.split('=', 1) for line in done.stdout.split() if '=' in line
        )
        pool = urllib3.PoolManager(
            ca_certs=said['KUBE_CA'], maxsize=THREADS, timeout=LIMIT_S,
            retries=urllib3.Retry(connect=3, read=0, redirect=0),
        )  # fmt: skip
        made = Cluster(
            folder, said['KUBE_URL'], said['KUBE_CA'], said['KUBE_TOKEN'],
            said['KUBE_SCHEDULER'], said['KUBECONFIG'], pool,
        )  # fmt: skip
        wait_until(lambda: _has_namespace(made))
        yield made
        pool.clear()
    finally:
        _stop(folder)


def restart_api_server(made: Cluster) -> None:
    """End the API server, and start it again at the same address.

    It knows what there is, and nothing of what was before.
    """
    path = made.folder / 'apiserver.pid'
    pid = int(path.read_text())
    process = pathlib.Path(f'/proc/{pid}')
    words = (process / 'cmdline').read_bytes().decode().split('\0')[:-1]
    folder = str((process / 'cwd').readlink())
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: _has_ended(process))
    # Its port is one that the system also gives to outgoing connections. While
    # one of these has it, the server ends at once.
    deadline = time.monotonic() + LIMIT_S
    while not _started(made, path, words, folder):
        assert time.monotonic() < deadline, 'the API server does not start'
        time.sleep(1)


def _started(
    made: Cluster, path: pathlib.Path, words: list[str], folder: str
) -> bool:
    """Start the API server; return whether it is ready, or ended again.

    :param path: of the file with its process id
    """
    # Started by a shell, as the one before.
    subprocess.run(
        ['bash', '-c', '"$@" >>"$0.log" 2>&1 </dev/null & echo $! >"$0"',
         str(path), *words],
        cwd=folder, check=True, timeout=LIMIT_S,
    )  # fmt: skip
    process = pathlib.Path(f'/proc/{int(path.read_text())}')
    wait_until(lambda: _has_ended(process) or _is_ready(made))
    return not _has_ended(process)


def _stop(folder: pathlib.Path) -> None:
    """Stop a control plane, and see to it that it ends.

    An API server without its etcd may wait for ever.
    """
    pids = [int(path.read_text()) for path in folder.glob('*.pid')]
    subprocess.run(
        ['bash', str(_SCRIPT), 'stop', str(folder)],
        check=True,
        timeout=LIMIT_S,
    )
    for pid in pids:
        process = pathlib.Path(f'/proc/{pid}')
        if not _has_ended(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda one=process: _has_ended(one))


def _has_ended(process: pathlib.Path) -> bool:
    """Whether a process ended; it may be there until it is waited for."""
    try:
        return ') Z ' in (process / 'stat').read_text()
    except OSError:
        return True


def _is_ready(made: Cluster) -> bool:
    """Whether the API server says that it is; on new connections."""
    made.pool.clear()
    try:
        reply = made.pool.request(
            'GET', f'{made.url}/readyz',
            headers={'Authorization': f'Bearer {made.token}'},
        )  # fmt: skip
    except urllib3.exceptions.HTTPError:
        return False
    return reply.status == 200


def _has_namespace(made: Cluster) -> bool:
    """Whether pods can be created: the API server makes the namespace."""
    status, _ = made.send('GET', f'/api/v1/namespaces/{NAMESPACE}')
    return status == 200
