"""Pods a second of a real kube-scheduler, with and without extenders.

On a real API server with nodes but no kubelets: without an extender, with one
that does nothing, and with this service by names, by node objects, over TLS
and with bind, with decisions on pods and without, in turns. A rate is that
from the tenth to the ninetieth percent of the pods, which exist before the
kube-scheduler starts; processor time is that of the extender in the same
stretch.

``--follow PODS`` says instead what it takes to follow a cluster with so many
placed pods, on PostgreSQL: from the start of the daemon's process until nodes
and pods are known, with an empty store, with the same store again, and with
shared hosts, whose claims are then written; and the processor time while pods
come and go.

The programs of the control plane lie beside the project: see
``tests.support.control_plane``.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import pathlib
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
)
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import msgspec
import urllib3

from benchmarks import common
from benchmarks.kube_serving import process_seconds
from scheduler_service.store.claims import pod_claims
from scheduler_service.store.connection import Store
from tests.support import control_plane, extenders, kube, servers
from tests.support.databases import migrated_database
from tests.support.kube import Cluster
from tests.support.waiting import LIMIT_S, wait_until

# Share of the pods with node objects, which take ten times as long.
_OBJECTS_SHARE = 0.1
_KINDS = 20
# Pods that come and go in a second, and for how many seconds.
_RATE, _CHURN_S = 50, 20
_SETTLED_S = 3.0
_NO_DECISIONS = '[kubernetes]\nrecord_decisions = false\n'


class Variant(NamedTuple):
    """One way of scheduling.

    :ivar entry: of the extender in the configuration; None: there is none
    :ivar pid: of the extender
    :ivar share: of the pods that it is given
    """

    name: str
    entry: Mapping[str, Any] | None = None
    pid: int | None = None
    share: float = 1.0


class _Metadata(msgspec.Struct):
    uid: str = ''


class _Spec(msgspec.Struct):
    nodeName: str = ''


class _Pod(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _Event(msgspec.Struct):
    object: _Pod


class Bindings:
    """Watches pods being bound, and notes two moments.

    :param marks: after how many bindings
    :param pid: of the process whose processor time is noted
    """

    def __init__(
        self, cluster: Cluster, marks: tuple[int, int], pid: int | None
    ) -> None:
        self._marks = marks
        self._pid = pid
        self.moments: list[tuple[float, float]] = []
        self._bound: set[str] = set()
        self._cluster = cluster
        self._ended = False
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the second moment.

        :raises RuntimeError: too few pods were bound
        """
        self._thread.join(LIMIT_S)
        self._ended = True
        if len(self.moments) < len(self._marks):
            raise RuntimeError(f'only {len(self._bound)} pods were bound')

    def _follow(self) -> None:
        # The API server ends the watch of a client that is slow; another one
        # starts with all pods that there are.
        while not (self._ended or self._watched()):
            pass

    def _watched(self) -> bool:
        """Watch until the API server ends it; return whether all is known."""
        response = self._cluster.pool.request(
            'GET',
            f'{self._cluster.url}/api/v1/namespaces/default/pods?watch=true',
            headers={'Authorization': f'Bearer {self._cluster.token}'},
            preload_content=False,
            timeout=urllib3.Timeout(connect=5, read=LIMIT_S),
        )
        read = msgspec.json.Decoder(_Event).decode
        rest = b''
        with contextlib.closing(response):
            for chunk in response.stream(None):
                *lines, rest = (rest + chunk).split(b'\n')
                for line in lines:
                    pod = read(line).object
                    if pod.spec.nodeName and self._add(pod.metadata.uid):
                        return True
        return False

    def _add(self, uid: str) -> bool:
        """Count a pod; return whether no more are waited for."""
        before = len(self._bound)
        self._bound.add(uid)
        if len(self._bound) > before and len(self._bound) in self._marks:
            used = process_seconds(self._pid) if self._pid else 0.0
            self.moments.append((time.perf_counter(), used))
        return len(self.moments) == len(self._marks)


def measure(cluster: Cluster, variant: Variant, pods: int) -> dict[str, float]:
    """Return what it took to place a number of pods."""
    count = round(pods * variant.share)
    scheduler = variant.name.replace(' ', '-')
    cluster.create_pods(
        kube.pod(
            f'{scheduler}-{number}',
            {'cpu': f'{50 + 5 * (number % _KINDS)}m', 'memory': '64Mi'},
            scheduler=scheduler,
        )
        for number in range(count)
    )
    marks = (count // 10, count * 9 // 10)
    bindings = Bindings(cluster, marks, variant.pid)
    entries = [] if variant.entry is None else [variant.entry]
    with cluster.scheduler(*entries, name=scheduler):
        bindings.wait()
    cluster.remove_pods()
    (start, before), (end, after) = bindings.moments
    placed = marks[1] - marks[0]
    return {
        'pods/s': placed / (end - start),
        'cpu ms': (after - before) * 1000 / placed,
    }


@contextlib.contextmanager
def own_extender(
    cluster: Cluster, folder: pathlib.Path, nodes: int, more: str = ''
) -> Iterator[tuple[int, int]]:
    """Run this service, which follows the cluster; yield port and pid."""
    database = folder / 'a.sqlite'
    port, config = _configured(cluster, folder, f'sqlite:///{database}', more)
    with common.daemon(config) as running:
        # The store has the nodes some seconds after the API server.
        wait_until(lambda: _hosts(database) >= nodes)
        time.sleep(2)
        yield port, running.pid


def _configured(
    cluster: Cluster, folder: pathlib.Path, database: str, more: str
) -> tuple[int, pathlib.Path]:
    """Return port and configuration file of a daemon that follows."""
    folder.mkdir()
    port = servers.free_port()
    config = common.write_config(folder, database, 'inproc://')
    with config.open('a') as file:
        file.write(
            f'[http]\nbind_port = {port}\n{more}'
            f'[kubernetes]\nenabled = true\n'
            f'[extender]\napi_server = {cluster.url}\n'
            f'api_ca_file = {cluster.ca_file}\n'
            f'api_token_file = {cluster.token_file()}\n'
        )
    common.manage(config, 'db', 'sync')
    return port, config


def _hosts(database: pathlib.Path) -> int:
    """Return how many hosts are in a store."""
    with contextlib.closing(sqlite3.connect(database)) as conn:
        (count,) = conn.execute('SELECT count(*) FROM hosts').fetchone()
        return int(count)


@contextlib.contextmanager
def variants(
    cluster: Cluster,
    folder: pathlib.Path,
    nodes: int,
    only: Collection[str],
) -> Iterator[list[Variant]]:
    """Start what is compared; an extender that is not called costs time, too.

    :param only: names of variants; empty: all
    """
    certs = extenders.certificates(folder)
    cert, key = certs.server
    tls = f'cert_file = {cert}\nkey_file = {key}\n'
    with contextlib.ExitStack() as stack:

        @functools.cache
        def daemon(options: str = '') -> tuple[int, int]:
            own = folder / f'daemon-{len(list(folder.iterdir()))}'
            return stack.enter_context(
                own_extender(cluster, own, nodes, options)
            )

        def names(
            name: str, options: str = '', share: float = 1.0, **more: Any
        ) -> Variant:
            port, pid = daemon(options)
            return Variant(name, kube.entry(port, **more), pid, share)

        def null() -> Variant:
            port = servers.free_port()
            nothing = stack.enter_context(
                common.process(
                    'benchmarks.null_extender', str(port), ready='Ready:'
                )
            )
            return Variant('null extender', kube.entry(port), nothing.pid)

        def over_tls() -> Variant:
            secure = {
                'urlPrefix': f'https://localhost:{daemon(tls)[0]}/extender',
                'enableHTTPS': True,
                'tlsConfig': {'caFile': str(certs.ca)},
            }
            return names('names over tls', tls, **secure)

        makers: dict[str, Callable[[], Variant]] = {
            'no extender': lambda: Variant('no extender'),
            'null extender': null,
            'names': lambda: names('names'),
            'names without decisions': lambda: names(
                'names without decisions', _NO_DECISIONS
            ),
            'names over tls': over_tls,
            'bind': lambda: names('bind', bindVerb='bind'),
            'bind without decisions': lambda: names(
                'bind without decisions', _NO_DECISIONS, bindVerb='bind'
            ),
            'objects': lambda: names(
                'objects', share=_OBJECTS_SHARE, nodeCacheCapable=False
            ),
        }
        yield [
            make() for name, make in makers.items() if not only or name in only
        ]


def following(
    cluster: Cluster, folder: pathlib.Path, nodes: int, pods: int
) -> dict[str, Any]:
    """Return what it takes to follow a cluster with many pods."""
    cluster.create_pods(_placed(range(pods), nodes))
    told: dict[str, float] = {}
    with servers.postgresql() as (_, base):
        url = migrated_database(base)
        store = Store.connect(url)
        for name, more in (
            ('first', ''),
            ('again', ''),
            ('shared', '[kubernetes]\nshared_hosts = true\n'),
        ):
            port, config = _configured(cluster, folder / name, url, more)
            start = time.perf_counter()
            with common.daemon(config) as running:
                for what, check in _KNOWN.items():
                    wait_until(functools.partial(check, port))
                    passed = time.perf_counter() - start
                    told[f'{name}, {what} known s'] = passed
                if more:
                    wait_until(lambda: _claims(store) >= pods, pause_s=0.5)
                    told[f'{name}, claimed s'] = time.perf_counter() - start
                time.sleep(_SETTLED_S)
                used = -process_seconds(running.pid)
                start = time.perf_counter()
                _churn(cluster, pods, nodes)
                used += process_seconds(running.pid)
                passed = time.perf_counter() - start
                told[f'{name}, % of a core'] = 100 * used / passed
                told[f'{name}, MB'] = common.memory_mb(running.pid)
                peak = common.memory_mb(running.pid, peak=True)
                told[f'{name}, MB at most'] = peak
        store.dispose()
    return {key: round(value, 2) for key, value in told.items()}


def _placed(numbers: Iterable[int], nodes: int) -> list[dict[str, Any]]:
    return [
        kube.pod(f'p-{number}', nodeName=f'node-{number % nodes}')
        for number in numbers
    ]


def _churn(cluster: Cluster, pods: int, nodes: int) -> None:
    """Place pods and delete as many, at a steady rate."""
    begun = time.perf_counter()
    for second in range(_CHURN_S):
        first = pods + second * _RATE
        made = range(first, first + _RATE)
        cluster.create_pods(_placed(made, nodes))
        with ThreadPoolExecutor(kube.THREADS) as threads:
            list(threads.map(lambda n: cluster.delete_pod(f'p-{n}'), made))
        time.sleep(max(0.0, begun + second + 1 - time.perf_counter()))


def _knows_nodes(port: int) -> bool:
    url = f'http://127.0.0.1:{port}/readyz'
    return urllib3.request('GET', url, timeout=LIMIT_S).status == 200


def _knows_pods(port: int) -> bool:
    """Whether a daemon counts pods: until then it refuses this one."""
    device = kube.pod('none', extended={'example.com/device': '1'})
    asked = {'Pod': device, 'NodeNames': ['node-0', 'node-1']}
    url = f'http://127.0.0.1:{port}/extender/filter'
    reply = urllib3.request('POST', url, json=asked, timeout=LIMIT_S)
    return reply.status == 200 and not reply.json()['Error']


_KNOWN: dict[str, Callable[[int], bool]] = {
    'nodes': _knows_nodes,
    'pods': _knows_pods,
}


def _claims(store: Store) -> int:
    with store.reading() as conn:
        return len(pod_claims.stored(conn))


def figures(
    figures_of: Mapping[str, list[dict[str, float]]],
) -> dict[str, Any]:
    """Return medians over the turns, and ratios to the null extender."""
    shown: dict[str, Any] = {}
    for name, turns in figures_of.items():
        for kind in ('pods/s', 'cpu ms'):
            value = statistics.median(turn[kind] for turn in turns)
            if value:
                shown[f'{name}, {kind}'] = round(value, 2)
    null = figures_of.get('null extender', [])
    for name, turns in figures_of.items():
        if null and turns is not null:
            shown[f'{name} to null extender, pods/s'] = round(
                statistics.median(
                    a['pods/s'] / b['pods/s']
                    for a, b in zip(turns, null, strict=True)
                ),
                3,
            )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--turns', type=int, default=5)
    parser.add_argument('--nodes', type=int, default=1000)
    parser.add_argument('--pods', type=int, default=1000)
    parser.add_argument(
        '--only', action='append', help='name of a variant; may be repeated'
    )
    parser.add_argument('--follow', type=int, help='number of placed pods')
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    if why := control_plane.missing():
        parser.exit(1, f'{why}\n')
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with control_plane.cluster(folder / 'kube') as cluster:
            cluster.create_nodes(
                kube.node(f'node-{number}', {'cpu': '64'})
                for number in range(args.nodes)
            )
            if args.follow:
                told = following(cluster, folder, args.nodes, args.follow)
                common.show(told, args.json)
                return
            with variants(
                cluster, folder, args.nodes, args.only or ()
            ) as kept:
                figures_of: dict[str, list[dict[str, float]]] = {}
                for _ in range(args.turns):
                    for extender in kept:
                        figures_of.setdefault(extender.name, []).append(
                            measure(cluster, extender, args.pods)
                        )
    common.show(figures(figures_of), args.json)


if __name__ == '__main__':
    main()
