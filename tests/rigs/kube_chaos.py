"""Pods that come and go on a few nodes, for the chaos of faults.

Daemons of one store stand behind one address, and bind what a real
kube-scheduler places; callers may place instances on the same nodes. All the
while claims are compared with the pods of the cluster: nothing is given twice,
and no pod is bound without a claim.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import sqlalchemy as sa

from scheduler_service import conf as options
from scheduler_service import errors
from scheduler_service.cmd import adapters
from scheduler_service.store import schema
from scheduler_service.store.reading import loading
from tests.rigs import chaos, claim_samples
from tests.support import clouds, kube, servers
from tests.support.clouds import Cloud
from tests.support.kube import Cluster
from tests.support.processes import Forked
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import LIMIT_S, wait_until

DEVICE, CLASS = 'example.com/engine', 'CUSTOM_EXAMPLE_COM_ENGINE'
NODES = [f'engines-{number}' for number in range(20)]
DEVICES = 2
# More pods than there are devices, so that some always wait.
_ALIVE = 60
# How many are deleted and created at once.
_AT_ONCE = 4
_PAUSE_S = 0.1
_SMALL = {'cpu': '100m', 'memory': '64Mi'}


class InstanceCaller(chaos.Caller):
    """A caller of instances, of which every other takes a device."""

    timeout_s = 5.0

    def _request(self, count: int) -> dict[str, Any]:
        request = super()._request(count)
        specs = {f'resources:{CLASS}': '1'} if self._rng.random() < 0.5 else {}
        request['flavor'] |= {'vcpus': 1, 'extra_specs': specs}
        return request


@dataclasses.dataclass
class KubeCloud(Cloud):
    """Daemons behind one address, and the cluster that they follow."""

    address: TcpProxy = dataclasses.field(default_factory=TcpProxy)
    ports: list[int] = dataclasses.field(default_factory=list)
    cluster: Cluster = dataclasses.field(init=False)
    pods: Pods = dataclasses.field(init=False)
    schedulers: contextlib.ExitStack = dataclasses.field(
        default_factory=contextlib.ExitStack
    )

    def start(self) -> None:
        """Start one more daemon, on a port of its own."""
        port = servers.free_port()
        config = self.config.with_name(f'{port}.conf')
        config.write_text(
            f'{self.config.read_text()}[http]\nbind_port = {port}\n'
        )
        with self.log.open('ab') as log:
            self.running.append(Forked(config, log.fileno()))
        self.address.targets.append(port)

    def bring(self, document: Any) -> None:
        """Import groups; hosts are the nodes."""
        super().bring({'server_groups': document['server_groups']})

    def restart_scheduler(self) -> None:
        """Kill the kube-scheduler, and start another."""
        self.schedulers.close()
        entry = kube.entry(
            self.address.port,
            bindVerb='bind',
            managedResources=[{'name': DEVICE, 'ignoredByScheduler': True}],
        )
        self.schedulers.enter_context(
            self.cluster.scheduler(entry, percentage=100)
        )

    def books(self) -> list[str]:
        """Return what an audit finds, of the cluster as well."""
        conf = adapters.new_config()
        options.parse(conf, [f'--config-file={self.config}'])
        deadline = time.monotonic() + LIMIT_S
        while True:
            of_pods = [one.text for one in adapters.audit(conf, self.store)]
            found = super().books() + of_pods
            if not found or time.monotonic() > deadline:
                return found


class Pods(threading.Thread):
    """Deletes pods and creates others, and compares them with the claims.

    :ivar bound: how many were seen on a node
    :ivar samples: how often they were compared
    :ivar wrong: what did not go together, in each sample
    """

    def __init__(
        self, cloud: KubeCloud, seed: int, over: threading.Event
    ) -> None:
        super().__init__(name='pods')
        self._cloud, self._cluster = cloud, cloud.cluster
        self._rng, self._over = random.Random(seed), over
        self._made = 0
        self.bound: set[str] = set()
        self.samples = 0
        self.wrong: list[list[str]] = []
        self.fault: BaseException | None = None

    def run(self) -> None:
        """Change pods until told to stop."""
        try:
            self._create(_ALIVE)
            while not self._over.is_set():
                before = self._placed()
                self.bound |= before.keys()
                self._compare(before)
                names = [*before.values()]
                for name, _ in self._rng.sample(
                    names, min(_AT_ONCE, len(names))
                ):
                    self._cluster.delete_pod(name)
                    self._create(1)
                time.sleep(_PAUSE_S)
        except BaseException as fault:
            self.fault = fault

    def _create(self, count: int) -> None:
        self._made += count
        self._cluster.create_pods(
            kube.pod(
                f'p-{self._made - at}',
                {'cpu': '1', 'memory': '512Mi'},
                {DEVICE: '1'},
            )
            for at in range(count)
        )

    def _placed(self) -> dict[str, tuple[str, str]]:
        """Return name and node of each pod that is bound, by uid."""
        return {
            one['metadata']['uid']: (
                one['metadata']['name'],
                one['spec']['nodeName'],
            )
            for one in self._cluster.pods()
            if one['spec'].get('nodeName')
        }

    def _compare(self, before: dict[str, tuple[str, str]]) -> None:
        """Compare pods that are there all the while with one snapshot."""
        try:
            with self._cloud.store.reading() as conn:
                tables = claim_samples.read(conn)
        except errors.StoreUnavailable:
            # It was killed.
            return
        wrong = [*claim_samples.capacity(tables)]
        after = self._placed()
        nodes = Counter(node for _, node in after.values())
        wrong += [
            f'{node} has {count} pods of {DEVICES}'
            for node, count in nodes.items()
            if count > DEVICES
        ]
        for uid, (name, node) in before.items():
            place = tables.places.get(uid)
            if uid in after and (place is None or place.host != node):
                wrong.append(f'{name} is on {node}, and claimed on {place}')
        self.samples += 1
        if wrong:
            self.wrong.append(wrong)


@contextlib.contextmanager
def cloud(
    database: str,
    bus: str,
    cluster: Cluster,
    daemons: int = 2,
    devices: int = DEVICES,
    shared: bool = False,
) -> Iterator[KubeCloud]:
    """Run daemons and a kube-scheduler on a cluster with a few nodes.

    :param devices: of each node
    :param shared: whether instances are placed on the nodes as well
    """
    size = {DEVICE: str(devices)}
    if shared:
        size |= {'cpu': '8', 'memory': '8Gi'}
    cluster.create_nodes(kube.node(name, size) for name in NODES)
    extra = (
        '[DEFAULT]\ncpu_allocation_ratio = 1.0\nram_allocation_ratio = 1.0\n'
        f'[kubernetes]\nenabled = true\nmanaged_resources = {DEVICE}\n'
        f'shared_hosts = {shared}\n'
        f'[extender]\napi_server = {cluster.url}\n'
        f'api_ca_file = {cluster.ca_file}\n'
        f'api_token_file = {cluster.token_file()}\n'
    )
    with clouds.cloud(database, bus, daemons, extra, kind=KubeCloud) as made:
        made.cluster = cluster
        try:
            wait_until(lambda: _are_known(made))
            made.restart_scheduler()
            yield made
        finally:
            made.schedulers.close()
            made.address.close()
            cluster.remove_pods()
            for name in NODES:
                cluster.call('DELETE', f'/api/v1/nodes/{name}')


def _are_known(made: KubeCloud) -> bool:
    with made.store.reading() as conn:
        return {*NODES} <= loading.host_names(conn)


def run(
    made: KubeCloud, seed: int = 1, least_bound: int = 0, **how: Any
) -> dict[str, Any]:
    """Run pods, and callers of instances, while faults happen.

    :param least_bound: how many pods have to be bound before it ends
    :param how: as for :func:`chaos.run`
    """
    over = threading.Event()
    pods = made.pods = Pods(made, seed, over)
    pods.start()
    try:
        told = chaos.run(
            made, seed=seed, kind=InstanceCaller,
            more=(made.restart_scheduler,), **how,
        )  # fmt: skip
        wait_until(
            lambda: pods.fault is not None or len(pods.bound) >= least_bound
        )
    finally:
        over.set()
        pods.join()
    if pods.fault is not None:
        raise pods.fault
    return {
        **told,
        'books': made.books(),
        'bound': len(pods.bound),
        'samples': pods.samples,
        'violations': pods.wrong,
    }


def outage(
    made: KubeCloud,
    database: servers.Server,
    rate: int,
    before: float,
    away: float,
) -> dict[str, Any]:
    """Create pods while the database is killed, and comes again.

    :param rate: pods in a second
    :param before: seconds that the database is there before, and afterwards
    :param away: seconds without the database
    :return: counts; pods that were ``lost``, and those bound unclaimed as
        ``violations``
    """
    counts = {}

    def wait(seconds: float, what: str) -> None:
        end, first = time.monotonic() + seconds, bound()
        while time.monotonic() < end:
            made.cluster.create_pods(
                kube.pod(f'p-{next(numbers)}', _SMALL, {DEVICE: '1'})
                for _ in range(rate)
            )
            time.sleep(max(0.0, next(ticks) - time.monotonic()))
        counts[what] = bound() - first

    def bound() -> int:
        return len(made.cluster.placements())

    numbers = itertools.count()
    ticks = itertools.count(time.monotonic() + 1.0)
    wait(before, 'bound before')
    database.kill(signal.SIGKILL)
    wait(away, 'bound while it was away')
    chaos.revive(database)
    wait(before, 'bound after')
    total = next(numbers)
    back = time.monotonic()
    with contextlib.suppress(AssertionError):
        made.cluster.wait_bound(total)
    return {
        **counts,
        'pods': total,
        'all bound after': round(time.monotonic() - back, 1),
        'lost': total - bound(),
        'books': made.books(),
        'violations': reported(made),
    }


def reported(made: KubeCloud) -> int:
    """Return how many pods were not claimed before they were seen.

    Such a claim does not have the host's uuid.
    """
    placed = sa.select(schema.instances.c.placement)
    with made.store.reading() as conn:
        texts = conn.execute(placed).scalars().all()
    selected = [msgspec.json.decode(text)['selected'] for text in texts]
    return sum(not one.get('uuid') for one in selected)
