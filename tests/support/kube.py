"""A real Kubernetes control plane on loopback, and kube-schedulers on it.

There is no kubelet: nodes are objects that tests create, and a pod that is
bound stays as it is. The programs lie beside the project; where they do not,
:func:`missing` says so, and tests are skipped with that reason.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import urllib3

from tests.support.paths import ROOT
from tests.support.waiting import wait_until

FOLDER = ROOT.parent / 'shared' / 'kube'
_SCRIPT = FOLDER / 'cluster.sh'
_THREADS = 8
_START_S = 150
_NAMESPACE = 'default'
# The scheduler that pods name unless they say otherwise.
SCHEDULER = 'default-scheduler'
# A node has this much unless it is said.
SIZE = {
    'cpu': '32',
    'memory': '64Gi',
    'ephemeral-storage': '500Gi',
    'pods': '250',
}


def missing() -> str:
    """Return why there can be no cluster; empty where there can be one."""
    if not _SCRIPT.exists():
        return f'the programs of a control plane are not in {FOLDER}'
    return ''


def node(
    name: str,
    size: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    ready: str = 'True',
    unschedulable: bool = False,
) -> dict[str, Any]:
    """Return a v1 Node; *size* is changes to that of every node."""
    amounts = {**SIZE, **(size or {})}
    return {
        'apiVersion': 'v1',
        'kind': 'Node',
        'metadata': {
            'name': name,
            'labels': {'kubernetes.io/hostname': name, **(labels or {})},
        },
        'spec': {'taints': list(taints), 'unschedulable': unschedulable},
        'status': {
            'capacity': amounts,
            'allocatable': amounts,
            'conditions': [{'type': 'Ready', 'status': ready}],
        },
    }


def pod(
    name: str,
    requests: Mapping[str, str] | None = None,
    extended: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    scheduler: str = SCHEDULER,
    **spec: Any,
) -> dict[str, Any]:
    """Return a v1 Pod of one container.

    :param requests: 100m and 200Mi unless said
    :param extended: resources that are limits as well
    :param spec: more fields of the pod's ``spec``
    """
    amounts = requests or {'cpu': '100m', 'memory': '200Mi'}
    return {
        'apiVersion': 'v1',
        'kind': 'Pod',
        'metadata': {'name': name, 'annotations': dict(annotations or {})},
        'spec': {
            'schedulerName': scheduler,
            'containers': [
                {
                    'name': 'main',
                    'image': 'none',
                    'resources': {
                        'requests': {**amounts, **(extended or {})},
                        'limits': dict(extended or {}),
                    },
                }
            ],
            **spec,
        },
    }


@dataclasses.dataclass(frozen=True)
class Cluster:
    """etcd and a kube-apiserver, with a client of it.

    :ivar url: of the API server
    :ivar token: of a user who may do everything
    :ivar kubeconfig: path of a file with both
    :ivar pki: folder with ``ca.crt``, and ``extender`` and ``client`` with
        ``.crt`` and ``.key``, for TLS between a kube-scheduler and us
    """

    folder: pathlib.Path
    url: str
    ca_file: str
    token: str
    program: str
    kubeconfig: str
    pool: urllib3.PoolManager

    @property
    def pki(self) -> pathlib.Path:
        """Return the folder of keys and certificates."""
        return self.folder / 'pki'

    def token_file(self) -> str:
        """Return the path of a file with the token."""
        path = self.folder / 'token'
        path.write_text(self.token)
        return str(path)

    def call(
        self, method: str, path: str, document: Any = None, **headers: str
    ) -> Any:
        """Call the API server; return the reply.

        :raises AssertionError: the status is not one of success
        """
        status, reply = self.send(method, path, document, **headers)
        assert status < 300, (method, path, status, reply)
        return reply

    def send(
        self, method: str, path: str, document: Any = None, **headers: str
    ) -> tuple[int, Any]:
        """Call the API server; return status and reply."""
        response = self.pool.request(
            method,
            self.url + path,
            body=None if document is None else json.dumps(document),
            headers={
                'Authorization': f'Bearer {self.token}',
                'Content-Type': 'application/json',
                **headers,
            },
        )
        return response.status, json.loads(response.data or b'null')

    def create(self, path: str, documents: Iterable[Any]) -> None:
        """Create objects, several at a time."""
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(lambda d: self.call('POST', path, d), documents))

    def create_nodes(self, nodes: Iterable[Mapping[str, Any]]) -> None:
        """Create nodes as :func:`node` returns them."""
        self.create('/api/v1/nodes', nodes)

    def create_pods(
        self, pods: Iterable[Mapping[str, Any]], namespace: str = _NAMESPACE
    ) -> None:
        """Create pods as :func:`pod` returns them."""
        self.create(f'/api/v1/namespaces/{namespace}/pods', pods)

    def nodes(self) -> list[dict[str, Any]]:
        """Return all nodes."""
        found: list[dict[str, Any]] = self.call('GET', '/api/v1/nodes')[
            'items'
        ]
        return found

    def pods(self, namespace: str = _NAMESPACE) -> list[dict[str, Any]]:
        """Return all pods."""
        path = f'/api/v1/namespaces/{namespace}/pods'
        found: list[dict[str, Any]] = self.call('GET', path)['items']
        return found

    def placements(self, namespace: str = _NAMESPACE) -> dict[str, str]:
        """Return the node of each pod that is bound."""
        return {
            one['metadata']['name']: one['spec']['nodeName']
            for one in self.pods(namespace)
            if one['spec'].get('nodeName')
        }

    def wait_bound(
        self, count: int, seconds: float = 90.0, namespace: str = _NAMESPACE
    ) -> dict[str, str]:
        """Wait until so many pods are bound; return the node of each."""

        def bound() -> dict[str, str]:
            found = self.placements(namespace)
            return found if len(found) >= count else {}

        found: dict[str, str] = wait_until(bound, seconds)
        return found

    def refusal(self, name: str) -> str:
        """Return why a pod is not scheduled; empty where nothing is said."""
        one = self.call('GET', f'/api/v1/namespaces/{_NAMESPACE}/pods/{name}')
        for condition in one.get('status', {}).get('conditions', ()):
            if condition['type'] == 'PodScheduled':
                return str(condition.get('message', ''))
        return ''

    def remove_pods(self, namespace: str = _NAMESPACE) -> None:
        """Delete all pods, and wait until they are gone."""
        path = f'/api/v1/namespaces/{namespace}/pods'
        self.call('DELETE', f'{path}?gracePeriodSeconds=0')
        wait_until(lambda: not self.pods(namespace), 60)

    def restart_api_server(self) -> None:
        """End the API server, and start it again at the same address.

        It knows what there is, and nothing of what was before.
        """
        path = self.folder / 'apiserver.pid'
        pid = int(path.read_text())
        process = pathlib.Path(f'/proc/{pid}')
        words = (process / 'cmdline').read_bytes().decode().split('\0')[:-1]
        folder = str((process / 'cwd').readlink())
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: _has_ended(process), 30)
        # Started by a shell, as the one before.
        subprocess.run(
            ['bash', '-c', '"$@" >>"$0.log" 2>&1 </dev/null & echo $! >"$0"',
             str(path), *words],
            cwd=folder, check=True, timeout=30,
        )  # fmt: skip
        wait_until(lambda: _is_ready(self), 60)

    def clear(self) -> None:
        """Delete all pods and nodes."""
        self.remove_pods()
        self.call('DELETE', '/api/v1/nodes')
        wait_until(lambda: not self.nodes(), 60)

    @contextlib.contextmanager
    def scheduler(
        self,
        *extenders: Mapping[str, Any],
        name: str = SCHEDULER,
        percentage: int | None = None,
        **more: Any,
    ) -> Iterator[KubeScheduler]:
        """Run a kube-scheduler until the block ends.

        :param extenders: entries of its configuration
        :param name: pods name the scheduler so
        :param percentage: of the nodes to score; None: its default
        :param more: further fields of KubeSchedulerConfiguration
        """
        profile: dict[str, Any] = {'schedulerName': name}
        if percentage is not None:
            profile['percentageOfNodesToScore'] = percentage
        document = {
            'apiVersion': 'kubescheduler.config.k8s.io/v1',
            'kind': 'KubeSchedulerConfiguration',
            'leaderElection': {'leaderElect': False},
            'clientConnection': {
                'kubeconfig': self.kubeconfig, 'qps': 5000, 'burst': 5000,
            },
            'profiles': [profile],
            'extenders': list(extenders),
            **more,
        }  # fmt: skip
        path = self.folder / f'{name}.json'
        path.write_text(json.dumps(document))
        log = self.folder / f'{name}.log'
        with log.open('wb') as output:
            popen = subprocess.Popen(
                [self.program, '--config', str(path), '--secure-port=0'],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        running = KubeScheduler(popen, log)
        try:
            yield running
        finally:
            popen.kill()
            popen.wait()


@dataclasses.dataclass(frozen=True)
class KubeScheduler:
    """A kube-scheduler's process.

    :ivar log: path of what it writes
    """

    popen: subprocess.Popen[bytes]
    log: pathlib.Path

    @property
    def pid(self) -> int:
        """Return the number of the process."""
        return self.popen.pid


def entry(port: int, **more: Any) -> dict[str, Any]:
    """Return our daemon's entry in the configuration of a kube-scheduler."""
    return {
        'urlPrefix': f'http://127.0.0.1:{port}/extender',
        'filterVerb': 'filter',
        'prioritizeVerb': 'prioritize',
        'weight': 1,
        'nodeCacheCapable': True,
        'httpTimeout': '5s',
        **more,
    }


@contextlib.contextmanager
def cluster(folder: pathlib.Path, roles: bool = False) -> Iterator[Cluster]:
    """Run a control plane in a folder until the block ends.

    :param roles: whether users may do only what roles say
    """
    folder.mkdir(parents=True, exist_ok=True)
    mode = 'RBAC' if roles else 'AlwaysAllow'
    command = ['bash', str(_SCRIPT), 'start', str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_START_S,
        env={'KUBE_AUTHORIZATION': mode, 'PATH': '/usr/bin:/bin'},
    )  # fmt: skip
    try:
        assert done.returncode == 0, done.stderr
        said = dict(
            line.split('=', 1) for line in done.stdout.split() if '=' in line
        )
        pool = urllib3.PoolManager(
            ca_certs=said['KUBE_CA'], maxsize=_THREADS, timeout=30.0,
            retries=urllib3.Retry(connect=3, read=0, redirect=0),
        )  # fmt: skip
        made = Cluster(
            folder, said['KUBE_URL'], said['KUBE_CA'], said['KUBE_TOKEN'],
            said['KUBE_SCHEDULER'], said['KUBECONFIG'], pool,
        )  # fmt: skip
        wait_until(lambda: _has_namespace(made), 60)
        yield made
        pool.clear()
    finally:
        _stop(folder)


def _stop(folder: pathlib.Path) -> None:
    """Stop a control plane, and see to it that it ends.

    An API server without its etcd may wait for ever.
    """
    pids = [int(path.read_text()) for path in folder.glob('*.pid')]
    subprocess.run(
        ['bash', str(_SCRIPT), 'stop', str(folder)], check=True, timeout=60
    )
    for pid in pids:
        process = pathlib.Path(f'/proc/{pid}')
        try:
            wait_until(lambda one=process: _has_ended(one), 5)
        except AssertionError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


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
    status, _ = made.send('GET', f'/api/v1/namespaces/{_NAMESPACE}')
    return status == 200


class Shared:
    """One control plane for all that ask, started when the first does."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._cluster: Cluster | None = None
        self._lock = threading.Lock()

    def get(self) -> Cluster:
        """Return the cluster."""
        with self._lock:
            if self._cluster is None:
                self._cluster = self._stack.enter_context(
                    cluster(self._folder)
                )
            return self._cluster

    def close(self) -> None:
        """Stop it, if it was started."""
        self._stack.close()
