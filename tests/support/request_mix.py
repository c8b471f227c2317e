"""Requests of all kinds, and what the compute service does of the answers.

Rows and allocations are written as its conductor and its computes write them,
each before or after the other as there.
"""

from __future__ import annotations

import collections
import dataclasses
import random
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from scheduler_service.store.reading import loading
from tests.support.nova_cloud import NovaCloud
from tests.support.nova_databases import cell_uuid
from tests.support.shadows import SIZES, Both

CLASSES = 'VCPU', 'MEMORY_MB', 'DISK_GB'
POLICIES = 'affinity', 'anti-affinity', 'soft-affinity', 'soft-anti-affinity'
# Kinds of requests, and how often each comes.
KINDS = {
    'build': 40,
    'several': 12,
    'grouped': 16,
    'refused by placement': 4,
    'refused by a filter': 4,
    'alternate': 6,
    'resize': 6,
    'migrate': 4,
    'live-migrate': 4,
    'evacuate': 4,
}
# How much is in use before servers are deleted.
_MOST_SERVERS = 150


@dataclasses.dataclass
class Server:
    """A server that was built.

    :ivar group: the fields of its server group; None: it is in none
    :ivar busy: whether it is being built or moved
    """

    uuid: str
    host: str
    flavor: dict[str, Any]
    group: dict[str, Any] | None = None
    busy: bool = False


class Mix:
    """Sends requests one after the other, from a seed.

    :param ready: called before each request, once the computes have acted
    :param settle: called after each answer, before they act on it
    """

    def __init__(
        self,
        both: Both,
        nova: NovaCloud,
        seed: int,
        ready: Callable[[Mix], Any] = lambda mix: None,
        settle: Callable[[Mix], Any] = lambda mix: None,
    ) -> None:
        self._both, self._nova = both, nova
        self._ready, self._settle = partial(ready, self), partial(settle, self)
        self._rng = random.Random(seed)
        self._cell = both.cloud.cells[0]
        # How many requests were sent, and of each kind: a move may send two.
        self.asked, self.kinds = 0, collections.Counter[str]()
        self._down: set[str] = set()
        self._servers: list[Server] = []
        self._groups: list[dict[str, Any]] = []
        # What computes and conductors still do, and after how many requests.
        self._later: list[tuple[int, Callable[[], None]]] = []

    def next(self) -> None:
        """Send a request, and do what comes of it."""
        self._go_on()
        self._ready()
        kind = self._rng.choices([*KINDS], [*KINDS.values()])[0]
        moves = 'resize', 'migrate', 'live-migrate', 'evacuate'
        if kind in moves and not self._idle():
            kind = 'build'
        request = f'req-{uuid.uuid4()}'
        self.kinds[kind] += 1
        (self._move if kind in moves else self._build)(kind, request)

    def is_read(self) -> bool:
        """Whether the shadow has what the hosts have reported so far."""
        both = self._both
        with both.shadow.store.reading() as conn:
            hosts = loading.hosts(conn).values()
        return all(
            (host.state == 'down') == (host.host in self._down)
            and host.num_io_ops == used['io_workload']
            and host.failed_builds == used['failed_builds']
            and host.vcpus_used == used['vcpus_used']
            and host.memory_mb_used == used['memory_mb_used']
            and host.local_gb_used == used['local_gb_used']
            for host in hosts
            for used in [both.used[host.host]]
        )

    def _go_on(self) -> None:
        due = [what for left, what in self._later if left <= 0]
        self._later = [(n - 1, what) for n, what in self._later if n > 0]
        for what in due:
            what()
        while len(self._servers) > _MOST_SERVERS and self._idle():
            self._delete(self._rng.choice(self._idle()))
        self._both.keep_alive()

    def _after(self, most: int, what: Callable[[], None]) -> None:
        self._later.append((self._rng.randrange(most + 1), what))

    def new_flavor(self) -> dict[str, Any]:
        """Return the fields of a flavor."""
        choice = self._rng.choice
        return {
            'vcpus': choice([1, 1, 2, 4]),
            'memory_mb': choice([512, 1024, 4096]),
            'root_gb': choice([1, 10]),
            'extra_specs': {},
        }

    def new(self, kind: str, number: int = 1) -> tuple[list[str], Any, Any]:
        """Return the instances, flavor and group of a request for new ones."""
        flavor, group = self.new_flavor(), None
        uuids = [str(uuid.uuid4()) for _ in range(number)]
        if kind == 'refused by placement':
            flavor['vcpus'] = 1000
        elif kind == 'refused by a filter':
            flavor['extra_specs'] = {'capabilities:hypervisor_type': 'none'}
        elif kind == 'grouped' or number == 3:
            group = self._group()
            group['members'] += uuids
        return uuids, flavor, group

    def spec(self, uuids: Any, flavor: Any, group: Any = None) -> Any:
        """Return the RequestSpec of new instances."""
        return self._nova.call(
            'spec', servers=uuids, flavor=flavor, group=self._sent(group)
        )

    def _build(self, kind: str, request: str) -> None:
        number = self._rng.choice([2, 3]) if kind == 'several' else 1
        uuids, flavor, group = self.new(kind, number)
        spec = self.spec(uuids, flavor, group)
        self.asked += 1
        hosts = self._both.ask_all(uuids, request, spec)
        self._settle()
        if not hosts and group is not None:
            group['members'] = group['members'][: -len(uuids)]
        for each, found in zip(uuids, hosts, strict=False):
            host = found[0]
            if kind == 'alternate' and len(found) > 1:
                self._fail(each, flavor, host)
                host = found[1]
                self._take(each, host, flavor)
            self._both.count(host, flavor, io_workload=1)
            self._both.cloud.add_instance(
                host, uuid=each, vm_state='building', task_state='spawning'
            )
            server = Server(each, host, flavor, group, busy=True)
            self._servers.append(server)
            self._after(2, partial(self._built, server))

    def _group(self) -> dict[str, Any]:
        """Return a server group, as the compute service keeps it."""
        if self._groups and self._rng.random() < 0.7:
            return self._rng.choice(self._groups)
        policy = self._rng.choice(POLICIES)
        group = {
            'uuid': str(uuid.uuid4()), 'name': 'g', 'project_id': 'p',
            'user_id': 'u', 'policy': policy, 'policies': [policy],
            'rules': {}, 'members': [],
        }  # fmt: skip
        # Old ones are no longer used, so that some are small.
        self._groups = [*self._groups[-7:], group]
        return group

    def _sent(self, group: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return a group with the hosts that the conductor adds."""
        hosts = {each.host for each in self._servers if each.group is group}
        return group and {**group, 'hosts': sorted(hosts)}

    def _built(self, server: Server) -> None:
        self._both.count(server.host, server.flavor, 0, io_workload=-1)
        self._set(server, vm_state='active', task_state=None)
        server.busy = False

    def _set(self, server: Server, **values: Any) -> None:
        self._both.cloud.update(
            self._cell, 'instances', {'uuid': server.uuid}, **values
        )

    def _fail(self, instance: str, flavor: Any, host: str) -> None:
        """Do what a compute does whose build fails."""
        self._both.count(host, flavor, io_workload=1)
        self._both.count(host, flavor, -1, io_workload=-1, failed_builds=1)
        self._release(instance)
        self._after(
            3, lambda: self._both.count(host, flavor, 0, failed_builds=-1)
        )

    def _take(self, consumer: str, host: str, flavor: Any) -> None:
        amounts = dict(zip(CLASSES, map(flavor.get, SIZES), strict=True))
        provider = self._both.providers[host]
        found = self._both.service.call('GET', f'/allocations/{consumer}')
        generation = found.get('consumer_generation')
        self._both.service.take(consumer, provider, generation, **amounts)

    def _release(self, consumer: str) -> None:
        self._both.service.call('DELETE', f'/allocations/{consumer}')

    def _delete(self, server: Server) -> None:
        self._servers.remove(server)
        if server.group is not None:
            server.group['members'].remove(server.uuid)
        self._set(server, task_state='deleting')
        self._set(server, deleted=1, vm_state='deleted')
        self._both.count(server.host, server.flavor, -1)
        self._release(server.uuid)

    def _move(self, kind: str, request: str) -> None:
        server = self._rng.choice(self._idle())
        source, old, migration = server.host, server.flavor, str(uuid.uuid4())
        flavor = self.new_flavor() if kind == 'resize' else old
        is_down = kind == 'evacuate'
        if is_down:
            self._force_down(source, True)
        else:
            self._hand_over(server.uuid, migration)
        self._set(
            server, task_state='rebuilding' if is_down else 'resize_prep'
        )
        ignored = [] if kind == 'resize' else [source]
        hosts = self._ask_for(server, request, flavor, ignored)
        if hosts and kind == 'live-migrate':
            # The destination turns out to be unfit: it is asked for another.
            self._release(server.uuid)
            unfit = hosts[0][0]
            hosts = self._ask_for(server, request, flavor, [source, unfit])
        if hosts:
            server.host, server.flavor, server.busy = hosts[0][0], flavor, True
            self._both.count(server.host, flavor, io_workload=1)
        elif not is_down:
            self._hand_over(migration, server.uuid)
        place = server.host

        def end() -> None:
            if is_down:
                self._force_down(source, False)
            if not hosts:
                return
            self._both.count(place, flavor, 0, io_workload=-1)
            self._both.count(source, old, -1)
            if is_down:
                self._take(server.uuid, place, flavor)
            else:
                self._release(migration)
            server.busy = False

        self._set(server, host=place, node=place, task_state=None)
        self._after(3, end)

    def _idle(self) -> list[Server]:
        return [each for each in self._servers if not each.busy]

    def _ask_for(
        self, server: Server, request: str, flavor: Any, ignored: Any
    ) -> list[list[str]]:
        """Ask for another host of a server."""
        spec = self._nova.call(
            'spec', servers=[server.uuid], flavor=flavor, ignored=ignored,
            group=self._sent(server.group), cell=cell_uuid(1),
        )  # fmt: skip
        self.asked += 1
        hosts = self._both.ask_all(
            [server.uuid], request, spec,
            lambda each: self._both.blame(self._cell, each),
        )  # fmt: skip
        self._settle()
        return hosts

    def _force_down(self, host: str, is_down: bool) -> None:
        where = {'host': host, 'binary': 'nova-compute'}
        (self._down.add if is_down else self._down.discard)(host)
        self._both.cloud.update(
            self._cell, 'services', where, forced_down=is_down
        )

    def _hand_over(self, giver: str, taker: str) -> None:
        """Give the allocations of one consumer to another, at once."""
        found = self._both.service.call('GET', f'/allocations/{giver}')
        owner = {'project_id': 'p', 'user_id': 'u'}
        generation = found['consumer_generation']
        body = {
            taker: {
                'allocations': {
                    provider: {'resources': held['resources']}
                    for provider, held in found['allocations'].items()
                },
                'consumer_generation': None, **owner,
            },
            giver: {
                'allocations': {}, 'consumer_generation': generation, **owner,
            },
        }  # fmt: skip
        self._both.service.call('POST', '/allocations', body)
