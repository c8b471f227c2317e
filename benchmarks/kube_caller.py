"""Calls an extender as a kube-scheduler of 1.36 does.

For each pod one filter call with the nodes that the kube-scheduler has found,
420 of 1,000, and one prioritize call with those that the reply lets pass; both
on a connection that is kept, and in the JSON of Go: no blanks, every field
there, names in no useful order and from another start each time.
"""

from __future__ import annotations

import _ssl
import ctypes
import dataclasses
import itertools
import json
import pathlib
import random
import socket
import ssl
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

DOMAIN = 'scheduler-service.local'
ZONE = 'topology.kubernetes.io/zone'
SHAPES = 20
# Go writes through a buffer of this size, and the rest of a body at once.
_BUFFER = 4096
_GO_CIPHERS = (
    b'TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:'
    b'TLS_CHACHA20_POLY1305_SHA256'
)
_TOLERATED = ('not-ready', 'unreachable')


def enough(nodes: int) -> int:
    """Return how many feasible nodes a kube-scheduler looks for."""
    if nodes < 100:
        return nodes
    percent = max(50 - nodes // 125, 5)
    return max(nodes * percent // 100, 100)


@dataclasses.dataclass(frozen=True)
class Shape:
    """What pods of one kind have in common.

    :ivar text: JSON of a pod, with NAME and UID where these belong
    :ivar zone: that the kube-scheduler has picked nodes from; None: any
    """

    text: str
    zone: str | None

    def pod(self, number: int) -> str:
        """Return the JSON of one pod."""
        text = self.text.replace('NAME', f'pod-{number}', 1)
        return text.replace('UID', str(uuid.UUID(int=number)), 1)


def shapes() -> list[Shape]:
    """Return twenty kinds of pods.

    Two ask for a zone, of which the kube-scheduler sends nodes only. Two have
    a request of ours with a trait that a third of the hosts lacks. The others
    fit on any node, in one to three containers.
    """
    return [_shape(number) for number in range(SHAPES)]


def _shape(number: int) -> Shape:
    spec: dict[str, Any] = {}
    metadata: dict[str, Any] = {'labels': {'app': f'app-{number}'}}
    zone = f'az{number % 3}' if number in (7, 14) else None
    if zone:
        spec['nodeSelector'] = {ZONE: zone}
    if number in (3, 11):
        metadata['annotations'] = {f'{DOMAIN}/request': json.dumps({
            'flavor': {'vcpus': 1, 'memory_mb': 64 * number, 'extra_specs': {
                'trait:HW_CPU_X86_AVX2': 'required'}},
        })}  # fmt: skip
    names = [f'c{at}' for at in range(1 + number % 3)]
    spec['containers'] = [_container(name, number) for name in names]
    if number % 5 == 0:
        spec['initContainers'] = [_container('init', number)]
    document = {
        'metadata': {
            'name': 'NAME',
            'namespace': 'default',
            'uid': 'UID',
            'resourceVersion': '579',
            'generation': 1,
            'creationTimestamp': '2026-11-20T08:52:08Z',
            **metadata,
        },
        'spec': {
            **spec,
            'restartPolicy': 'Always',
            'terminationGracePeriodSeconds': 30,
            'dnsPolicy': 'ClusterFirst',
            'securityContext': {},
            'schedulerName': 'default-scheduler',
            'tolerations': [
                {'key': f'node.kubernetes.io/{problem}', 'operator': 'Exists',
                 'effect': 'NoExecute', 'tolerationSeconds': 300}
                for problem in _TOLERATED
            ],
            'priority': 0,
            'enableServiceLinks': True,
            'preemptionPolicy': 'PreemptLowerPriority',
        },
        'status': {'phase': 'Pending', 'qosClass': 'Burstable'},
    }  # fmt: skip
    return Shape(json.dumps(document, separators=(',', ':')), zone)


def _container(name: str, number: int) -> dict[str, Any]:
    return {
        'name': name,
        'image': 'registry.example/pause:3.9',
        'resources': {'requests': {
            'cpu': f'{100 + 25 * number}m', 'memory': f'{128 + number}Mi'}},
        'terminationMessagePath': '/dev/termination-log',
        'terminationMessagePolicy': 'File',
        'imagePullPolicy': 'IfNotPresent',
    }  # fmt: skip


def node(number: int) -> dict[str, Any]:
    """Return a node document of about 5 KB; the store does not have it."""
    return {
        'metadata': {
            'name': f'unknown-{number}', 'uid': f'u{number}',
            'labels': {'topology.kubernetes.io/zone': f'z{number % 3}',
                       'kubernetes.io/arch': 'amd64'},
            'managedFields': [{'manager': 'x', 'fieldsV1': {
                f'f:{at}': {'.': {}} for at in range(60)}}],
        },
        'spec': {'podCIDR': '10.0.0.0/24'},
        'status': {
            'allocatable': {'cpu': '31500m', 'memory': '124Gi',
                            'ephemeral-storage': '500Gi', 'pods': '250'},
            'conditions': [{'type': 'Ready', 'status': 'True'}],
            'images': [{'names': [f'registry.example/image-{at}:1'],
                        'sizeBytes': at} for at in range(40)],
            'nodeInfo': {'architecture': 'amd64'},
        },
    }  # fmt: skip


def windows(
    names: Sequence[str], zone_of: Callable[[str], str], seed: int = 1
) -> Iterator[tuple[Shape, list[str]]]:
    """Yield pods' shapes, each with the nodes that are found for one.

    :param zone_of: gives the zone of a node
    """
    rng = random.Random(seed)
    kinds = shapes()
    while True:
        shape = rng.choice(kinds)
        fitting = [
            name
            for name in names
            if shape.zone is None or zone_of(name) == shape.zone
        ]
        start = rng.randrange(len(fitting))
        nodes = [*fitting[start:], *fitting[:start]][: enough(len(names))]
        # Sixteen threads look at nodes in parallel.
        for at in range(0, len(nodes), 16):
            part = nodes[at : at + 16]
            rng.shuffle(part)
            nodes[at : at + 16] = part
        yield shape, nodes


def tls_context(ca: pathlib.Path) -> ssl.SSLContext:
    """Return TLS as Go's client has it: it asks for AES with 128 bits first.

    Python's ``ssl`` has no call for that with TLS 1.3, so OpenSSL is called.

    :param ca: that the extender's certificate is checked with
    :raises RuntimeError: OpenSSL does not have these ciphers
    """
    context = ssl.create_default_context(cafile=str(ca))
    openssl = ctypes.CDLL(_ssl.__file__)
    # CPython keeps OpenSSL's pointer behind the head of the object.
    pointer = ctypes.c_void_p.from_address(id(context) + object.__basicsize__)
    if not openssl.SSL_CTX_set_ciphersuites(pointer, _GO_CIPHERS):
        raise RuntimeError(f'ciphers: {_GO_CIPHERS!r}')
    return context


class KubeCaller:
    """Sends the calls of one kube-scheduler, on a connection that is kept.

    :param port: of the extender, on loopback
    :param prefix: path in front of the verbs
    :param context: of TLS; None: plain HTTP
    """

    def __init__(
        self, port: int, prefix: str, context: ssl.SSLContext | None = None
    ) -> None:
        self._host = f'127.0.0.1:{port}'
        self._prefix = prefix
        self._sock = socket.create_connection(('127.0.0.1', port), 60)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            self._sock = context.wrap_socket(
                self._sock, server_hostname='localhost'
            )
        self._numbers = itertools.count(1)

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def call(self, verb: str, body: bytes) -> bytes:
        """Return the body of the reply to one call."""
        head = (
            f'POST {self._prefix}/{verb} HTTP/1.1\r\nHost: {self._host}\r\n'
            'User-Agent: Go-http-client/1.1\r\n'
            f'Content-Length: {len(body)}\r\n'
            'Content-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n'
        )
        text = head.encode() + body
        self._sock.sendall(text[:_BUFFER])
        if len(text) > _BUFFER:
            self._sock.sendall(text[_BUFFER:])
        return self._read()

    def _read(self) -> bytes:
        data = self._sock.recv(262144)
        head, separator, body = data.partition(b'\r\n\r\n')
        if not (separator and head.startswith(b'HTTP/1.1 200 ')):
            raise RuntimeError(f'reply: {data[:300]!r}')
        size = int(head.lower().partition(b'content-length: ')[2].split()[0])
        parts, remaining = [body], size - len(body)
        while remaining > 0:
            parts.append(self._sock.recv(min(remaining, 1048576)))
            remaining -= len(parts[-1])
        return b''.join(parts)

    def place(self, shape: Shape, names: Sequence[str]) -> int:
        """Have nodes filtered and scored for a pod; return how many pass.

        One node alone is not scored.
        """
        pod = shape.pod(next(self._numbers))
        sent = self._by_names(pod, names)
        reply = msgspec.json.decode(self.call('filter', sent))
        passed = reply['NodeNames']
        if reply['Error'] or len(passed) != len(names) - len(
            reply.get('FailedNodes') or ()
        ) - len(reply.get('FailedAndUnresolvableNodes') or ()):
            raise RuntimeError(f'reply: {str(reply)[:300]}')
        if len(passed) < 2:
            return len(passed)
        if passed != names:
            sent = self._by_names(pod, passed)
        scores = msgspec.json.decode(self.call('prioritize', sent))
        if [score['Host'] for score in scores] != passed:
            raise RuntimeError(f'scores: {str(scores)[:300]}')
        return len(passed)

    @staticmethod
    def _by_names(pod: str, names: Sequence[str]) -> bytes:
        listed = '","'.join(names)
        return (
            f'{{"Pod":{pod},"Nodes":null,"NodeNames":["{listed}"]}}'.encode()
        )
