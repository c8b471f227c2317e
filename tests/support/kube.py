"""A real Kubernetes control plane on loopback, and kube-schedulers on it.

There is no kubelet: nodes are objects that tests create, and a pod that is
bound stays as it is. :mod:`tests.support.control_plane` starts it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import urllib3

from scheduler_service.kube import pod_reader
from scheduler_service.kube.pod_reader import Pod
from tests.support.waiting import wait_until

THREADS = 8
# Between two lists of all objects, each of which keeps the API server busy.
_PAUSE_S = 0.1
NAMESPACE = 'default'
# The scheduler that pods name unless they say otherwise.
SCHEDULER = 'default-scheduler'
# A node has this much unless it is said.
SIZE = {
    'cpu': '32',
    'memory': '64Gi',
    'ephemeral-storage': '500Gi',
    'pods': '250',
}


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
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(lambda d: self.call('POST', path, d), documents))

    def create_nodes(self, nodes: Iterable[Mapping[str, Any]]) -> None:
        """Create nodes as :func:`node` returns them."""
        self.create('/api/v1/nodes', nodes)

    def create_pods(
        self, pods: Iterable[Mapping[str, Any]], namespace: str = NAMESPACE
    ) -> None:
        """Create pods as :func:`pod` returns them."""
        self.create(f'/api/v1/namespaces/{namespace}/pods', pods)

    def nodes(self) -> list[dict[str, Any]]:
        """Return all nodes."""
        found: list[dict[str, Any]] = self.call('GET', '/api/v1/nodes')[
            'items'
        ]
        return found

    def pods(self, namespace: str = NAMESPACE) -> list[dict[str, Any]]:
        """Return all pods."""
        path = f'/api/v1/namespaces/{namespace}/pods'
        found: list[dict[str, Any]] = self.call('GET', path)['items']
        return found

    def placements(self, namespace: str = NAMESPACE) -> dict[str, str]:
        """Return the node of each pod that is bound."""
        return {
            one['metadata']['name']: one['spec']['nodeName']
            for one in self.pods(namespace)
            if one['spec'].get('nodeName')
        }

    def wait_bound(
        self, count: int, namespace: str = NAMESPACE
    ) -> dict[str, str]:
        """Wait until *count* pods are bound; return the node of each."""

        def bound() -> dict[str, str]:
            found = self.placements(namespace)
            return found if len(found) >= count else {}

        found: dict[str, str] = wait_until(bound, pause_s=_PAUSE_S)
        return found

    def refusal(self, name: str, namespace: str = NAMESPACE) -> str:
        """Return why a pod is not scheduled; empty where nothing is said."""
        one = self.call('GET', f'/api/v1/namespaces/{namespace}/pods/{name}')
        for condition in one.get('status', {}).get('conditions', ()):
            if condition['type'] == 'PodScheduled':
                return str(condition.get('message', ''))
        return ''

    def delete_pod(self, name: str, namespace: str = NAMESPACE) -> None:
        """Delete a pod at once."""
        path = f'/api/v1/namespaces/{namespace}/pods/{name}'
        self.call('DELETE', f'{path}?gracePeriodSeconds=0')

    def remove_pods(self, namespace: str = NAMESPACE) -> None:
        """Delete all pods, and wait until they are gone."""
        path = f'/api/v1/namespaces/{namespace}/pods'
        self.call('DELETE', f'{path}?gracePeriodSeconds=0')
        wait_until(lambda: not self.pods(namespace), pause_s=_PAUSE_S)

    def clear(self) -> None:
        """Delete all pods and nodes."""
        self.remove_pods()
        self.call('DELETE', '/api/v1/nodes')
        wait_until(lambda: not self.nodes(), pause_s=_PAUSE_S)

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


def read(document: Any) -> Pod:
    """Return a v1 Pod as the service reads it."""
    return pod_reader.read(json.dumps(document).encode())


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
