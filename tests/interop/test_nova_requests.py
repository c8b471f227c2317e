"""Requests come to the same with nova-scheduler and with our daemon.

Both get the same requests by nova's client, one after the other, with the same
databases and the same placement service. Hosts are rows without a compute
service: a fake hypervisor reports no NUMA cells, no devices and no providers
below its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler_service.cmd.daemon import Daemon
from scheduler_service.store.connection import Store
from tests.support import servers, shipped
from tests.support.databases import migrated_database
from tests.support.nova_cloud import Failed, NovaCloud
from tests.support.nova_databases import NovaDatabases
from tests.support.placement_service import (
    PlacementService,
    daemon_options,
    placement_service,
)
from tests.support.stores import stored_host
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.functional,
    pytest.mark.broker,
    pytest.mark.db,
]
FILTERS = [*shipped.filters(), 'NUMATopologyFilter', 'PciPassthroughFilter']
BANDWIDTH = 'NET_BW_EGR_KILOBIT_PER_SEC'
PACKETS = 'NET_PACKET_RATE_KILOPACKET_PER_SEC'
SHARES = 'MISC_SHARES_VIA_AGGREGATE'
MANAGED = 'COMPUTE_MANAGED_PCI_DEVICE'
VF = {'vendor_id': '8086', 'product_id': '1520'}
GPU = {'vendor_id': '10de', 'product_id': '2222'}
# Of the host's cells with 4 KiB and 2 MiB pages, each 2 GiB.
PAGES = [
    {'size_kb': 4, 'total': 524288, 'used': 0, 'reserved': 0},
    {'size_kb': 2048, 'total': 1024, 'used': 0, 'reserved': 512},
]
NONE = ''


def cell(number: int, socket: int, usage: int = 0) -> dict[str, Any]:
    """Return a cell with 4 shared and 4 dedicated CPUs of 4 cores."""
    cpus = [*range(8 * number, 8 * number + 8)]
    return {
        'cpuset': cpus[:4],
        'pcpuset': cpus[4:],
        'pinned_cpus': [],
        'siblings': [cpus[at : at + 2] for at in range(0, 8, 2)],
        'cpu_usage': usage,
        'memory': 4096,
        'memory_usage': 0,
        'mempages': PAGES,
        'socket': socket,
    }


def near(made: dict[str, Any], *physnets: str) -> dict[str, Any]:
    """Return a cell to which some physical networks are attached."""
    affinity = {'physnets': [*physnets], 'tunneled': False}
    return {**made, 'network_metadata': affinity}


def pool(numa_node: int, count: int = 1, **keys: Any) -> dict[str, Any]:
    """Return a pool of devices."""
    tags = {'dev_type': 'type-VF', **keys.pop('tags', {})}
    found = {**VF, 'numa_node': numa_node, 'count': count, **keys}
    return {**found, 'tags': tags}


class Pair:
    """A database and a placement service with two schedulers of them.

    :ivar names: uuid of a provider -> its name
    :ivar stock: what nova-scheduler chose, by the name of a case
    """

    def __init__(
        self, folder: Any, base: str, bus: str, placement: PlacementService
    ) -> None:
        self.placement = placement
        self.names: dict[str, str] = {}
        self.uuids: dict[str, str] = {}
        self.stock: dict[str, Outcome] = {}
        self._zones = 0
        self._databases = NovaDatabases(base)
        self._stack = contextlib.ExitStack()
        self._stack.callback(self._databases.close)
        # Ours takes the queue over, once nova-scheduler has ended.
        self._cloud = NovaCloud(
            folder,
            self._databases,
            bus,
            placement,
            'http://127.0.0.1:1',
            '[filter_scheduler]\ntrack_instance_changes = false\n'
            f'enabled_filters = {",".join(FILTERS)}\n'
            'pci_in_placement = true\n'
            # Nobody reports for the hosts.
            '[DEFAULT]\nservice_down_time = 3600\n',
        )
        self._stack.callback(self._cloud.stop)
        self._cloud.start_api()
        self._cloud.map_cells()

    def add_host(
        self,
        name: str,
        *traits: str,
        cells: Any = (),
        pools: Any = (),
        **amounts: Any,
    ) -> None:
        """Add a host with its provider."""
        rows = self._cloud.call('rows', cells=[*cells], pools=[*pools])
        room = {'VCPU': 8, 'MEMORY_MB': 8192, 'DISK_GB': 100, **amounts}
        made = self._databases.add_host(
            name,
            vcpus=room['VCPU'],
            memory_mb=room['MEMORY_MB'],
            memory_mb_used=0,
            free_ram_mb=room['MEMORY_MB'],
            cpu_allocation_ratio=1.0,
            ram_allocation_ratio=1.0,
            disk_allocation_ratio=1.0,
            **rows,
        )
        self._add(made, name, traits, None, room)

    def add_child(
        self, name: str, parent: str, *traits: str, **amounts: Any
    ) -> str:
        """Add a provider below another; return its uuid."""
        made = str(uuid.uuid4())
        self._add(made, name, traits, self.uuids[parent], amounts)
        return made

    def _add(
        self, made: str, name: str, traits: Any, parent: Any, amounts: Any
    ) -> None:
        self.names[made], self.uuids[name] = name, made
        # Names of placement do not differ by case alone.
        stated = made if name.islower() else name
        self.placement.add_provider(made, stated, traits, parent, **amounts)

    def add_zone(self, zone: str, *hosts: str) -> None:
        """Add an availability zone of some hosts, in no other aggregate."""
        self._zones += 1
        aggregate = self._databases.add_aggregate(
            self._zones, zone, hosts, availability_zone=zone
        )
        self.put_together(*hosts, aggregate=aggregate)

    def put_together(self, *names: str, aggregate: str = '') -> None:
        """Put providers into an aggregate of their own, or into a given one.

        They leave those that they are in.
        """
        aggregate = aggregate or str(uuid.uuid4())
        for name in names:
            provider = self.uuids[name]
            generation = self.placement.generation(provider)
            self.placement.call(
                'PUT',
                f'/resource_providers/{provider}/aggregates',
                {
                    'resource_provider_generation': generation,
                    'aggregates': [aggregate],
                },
            )

    @contextlib.contextmanager
    def nova_scheduler(self) -> Iterator[None]:
        """Run nova's own scheduler."""
        with self._cloud.scheduler():
            yield

    def start_daemon(self, database: str) -> None:
        """Start our daemon; wait until it has the hosts."""
        self.store = Store.connect(database)
        self._stack.callback(self.store.dispose)
        conf = daemon_options(
            self.placement,
            database__connection=database,
            scheduler__topic='scheduler-service',
            compute__enabled=True,
            compute__api_database=self._databases.api,
            compute__use_placement=True,
            compute__service_down_time=3600.0,
            filter_scheduler__enabled_filters=FILTERS,
        )
        self.daemon = Daemon(conf, self._cloud.bus)
        self._stack.callback(self.daemon.stop)
        self.daemon.start()
        for name in self._hosts():
            wait_until(
                lambda of=name: (
                    (one := stored_host(self.store, of)) and one.vcpus
                ),
            )

    def _hosts(self) -> list[str]:
        return [name for name in self.uuids if name.isupper() and name != 'S']

    def ask(self, servers: list[str], **request: Any) -> Any:
        """Return what the scheduler chose for servers; None: no host.

        What placement holds of them is what the reply says.
        """
        try:
            chosen = self._cloud.call('place', servers=servers, **request)
        except Failed as error:
            if not str(error).startswith('NoValidHost'):
                raise
            assert not any(map(self.placement.held, servers))
            return None
        for server, choice in zip(servers, chosen, strict=True):
            assert self.placement.held(server) == choice['allocations']
        return chosen

    def forget(self, ours: bool, servers: list[str]) -> None:
        """Take back what a scheduler gave servers."""
        if ours:
            self.daemon.scheduler.release(servers).result(LIMIT_S)
            wait_until(lambda: not any(map(self.placement.held, servers)))
        for server in servers:
            if self.placement.held(server):
                self.placement.call('DELETE', f'/allocations/{server}')

    def others(self, kept: str) -> list[str]:
        """Return all hosts but some."""
        return sorted({*self._hosts()} - {*kept})

    def close(self) -> None:
        """Stop everything."""
        self._stack.close()


@pytest.fixture
def pair(
    mariadb: Any, rabbitmq: Any, tmp_path: pathlib.Path
) -> Iterator[Pair]:
    """Both schedulers, with the hosts of the cases."""
    with placement_service(mariadb[1]) as placement:
        made = Pair(
            tmp_path,
            mariadb[1],
            servers.new_vhost(*rabbitmq),
            placement,
        )
        try:
            add_hosts(made)
            with made.nova_scheduler():
                made.stock = {
                    case.name: decide(made, case, ours=False) for case in CASES
                }
            # What nova-scheduler claimed is gone before we read placement.
            made.start_daemon(migrated_database(mariadb[1]))
            yield made
        finally:
            made.close()


def add_hosts(pair: Pair) -> None:
    """Add the hosts of all cases; A has most memory, so it is preferred."""
    cpus = [*range(16)]
    alone = {
        **cell(0, 0),
        'cpuset': cpus,
        'pcpuset': cpus,
        'siblings': [[cpu] for cpu in cpus],
        'memory': 65536,
        'mempages': [{'size_kb': 4, 'total': 2**24, 'used': 0, 'reserved': 0}],
    }
    pair.add_host('A', cells=[alone], VCPU=16, MEMORY_MB=65536)
    both = {'PCPU': 8, 'VCPU': 8}
    threads = 'HW_CPU_HYPERTHREADING'
    pair.add_host(
        'B', threads,
        cells=[near(cell(0, 0), 'physA'), near(cell(1, 1))],
        pools=[pool(1, 2)], **both,
    )  # fmt: skip
    pair.add_host(
        'C', threads, cells=[cell(0, 0, 4), cell(1, 0)], pools=[pool(0)],
        **both,
    )  # fmt: skip
    pair.add_host('D')
    pair.add_child('d1', 'D', 'CUSTOM_V11', VGPU=2)
    pair.add_child('d2', 'D', 'CUSTOM_V12', VGPU=2)
    pair.add_child('d3', 'D', 'HW_CPU_X86_AMD_SEV', MEM_ENCRYPTION_CONTEXT=1)
    pair.add_host('E', 'CUSTOM_ROOT')
    pair.add_child('e0', 'E', CUSTOM_AGENT=1, **{PACKETS: 1000})
    pair.add_child('e1', 'e0', 'CUSTOM_PHYSNET_A', **{BANDWIDTH: 9000})
    pair.add_child('e2', 'e0', 'CUSTOM_PHYSNET_B', **{BANDWIDTH: 9000})
    for number in '12345':
        # Weighed better than E.
        pair.add_host(f'X{number}', MEMORY_MB=32768)
        pair.add_child(
            f'x{number}', f'X{number}', 'CUSTOM_PHYSNET_A',
            **{BANDWIDTH: 9000},
        )  # fmt: skip
    devices = [str(uuid.uuid4()) for _ in range(4)]
    pools = [
        pool(at // 2, **GPU, tags={'dev_type': 'type-PCI', 'rp_uuid': of})
        for at, of in enumerate(devices)
    ]
    pair.add_host(
        'F', threads, cells=[cell(0, 0), cell(1, 1)], pools=pools, **both
    )
    for at, of in enumerate(devices):
        blue = ['CUSTOM_BLUE'] if at == 3 else []
        pair._add(
            of, f'f{at + 1}', [MANAGED, *blue], pair.uuids['F'],
            {'CUSTOM_GPU': 1},
        )  # fmt: skip
    # Its first cell, to which the network is attached, is full.
    pair.add_host('G', cells=[near(cell(0, 0, 4), 'physA'), near(cell(1, 1))])
    pair.add_host('H', VCPU=3)
    pair.add_host(
        'T',
        cells=[cell(0, 0)],
        pools=[
            pool(0, tags={'physical_network': 'a'}),
            pool(0, tags={}),
        ],
    )
    pair._add(str(uuid.uuid4()), 's', [SHARES], None, {'CUSTOM_LICENSE': 2})
    pair.put_together('s', 'A')
    # A has most memory, and of X1 to X5 each is as good as the other.
    pair.add_zone('west', 'X1', 'X2')
    pair.add_zone('east', 'X3')


@dataclasses.dataclass
class Outcome:
    """What a scheduler chose for the servers of a case.

    :ivar hosts: in order of name; empty: no host
    :ivar nested: what else is claimed of, in order of name
    :ivar groups: suffixes of the groups of resources of each server
    :ivar limits: whether there are limits of NUMA cells, for each server
    """

    hosts: str
    nested: str
    amounts: Counter[str]
    groups: list[set[str]]
    limits: list[bool]


@dataclasses.dataclass
class Case:
    """A request, and what may come of it.

    :ivar hosts: the hosts of its servers, in order of name, for each outcome
        that may be; empty: no host
    :ivar nested: what else they are claimed of, for each outcome; None: of
        whatever
    :ivar amounts: some of what is claimed in all
    :ivar kept: the only hosts that may be; empty: all
    :ivar stock: the hosts that nova-scheduler selects, where they differ
    """

    name: str
    request: dict[str, Any]
    hosts: list[str]
    nested: list[str] | None = None
    amounts: dict[str, int] | None = None
    kept: str = ''
    count: int = 1
    stock: str | None = None


def grouped(*more: tuple[str, str], **flavor: Any) -> dict[str, Any]:
    """Return a request with extra specs."""
    return {'flavor': {'extra_specs': dict(more), **flavor}}


PORT = '1cbce090-58db-43ab-acf3-fb4db2d9117a'


def port(
    resource: str = BANDWIDTH, amount: int = 1000, *traits: str, **more: Any
) -> dict[str, Any]:
    """Return the group of a port."""
    return {
        'requester_id': PORT,
        'resources': {resource: amount},
        'required_traits': [*traits],
        **more,
    }


def devices(
    count: int, traits: str = '', policy: str | None = None
) -> dict[str, Any]:
    """Return a request for devices that placement has as well."""
    spec = {'resource_class': 'CUSTOM_GPU', **GPU}
    return {
        'request_id': str(uuid.uuid4()),
        'alias_name': 'gpu',
        'count': count,
        'spec': [{**spec, 'traits': traits} if traits else spec],
        'numa_policy': policy,
        'placed': True,
    }


def functions(
    count: int = 1, policy: str | None = None, **spec: Any
) -> dict[str, Any]:
    """Return a request for devices that placement does not have."""
    return {
        'request_id': str(uuid.uuid4()),
        'count': count,
        'spec': [{**VF, **spec}],
        'numa_policy': policy,
    }


ONE_CELL = ('hw:numa_nodes', '1')
TWO_CELLS = ('hw:numa_nodes', '2')
ENCRYPTED = {
    'hw_firmware_type': 'uefi',
    'hw_machine_type': 'q35',
}
MIXED = [('hw:cpu_policy', 'mixed'), ('hw:cpu_dedicated_mask', '0')]
PINNED = ('hw:cpu_policy', 'dedicated')
FOUR = {'vcpus': 4}
# The hosts whose cells differ in what counts for CPUs.
STUDIED = 'ABCF'


def guest_cell(
    pagesize: int, threads: str | None, first: int
) -> dict[str, Any]:
    """Return a cell of a server with one dedicated CPU."""
    return {
        'cpuset': [],
        'pcpuset': [first],
        'memory': 512,
        'pagesize': pagesize,
        'cpu_policy': 'dedicated',
        'cpu_thread_policy': threads,
    }


CASES = [
    Case('1', grouped(('resources:VGPU', '1'),
                      ('trait:CUSTOM_V12', 'required')), ['D'], ['d2']),
    Case('2', grouped(('resources:VGPU', '3')), [NONE]),
    Case('3', grouped(('resources:VGPU', '1'),
                      ('trait:CUSTOM_V11', 'forbidden')), ['D'], ['d2']),
    Case('4-three', grouped(('resources:VGPU', '1'),
                            ('trait:CUSTOM_V11', 'required')),
         [NONE], count=3),
    Case('4-two', grouped(('resources:VGPU', '1'),
                          ('trait:CUSTOM_V11', 'required')),
         ['DD'], ['d1d1'], count=2),
    Case('5', {**grouped(('hw:mem_encryption', 'true')), 'image': ENCRYPTED},
         ['D'], ['d3']),
    Case('5-snp', {**grouped(('hw:mem_encryption', 'true'),
                             ('hw:mem_encryption_model', 'amd-sev-snp')),
                   'image': {**ENCRYPTED, 'hw_firmware_stateless': 'true',
                             'hw_video_model': 'none'}}, [NONE]),
    Case('6', {'flavor': {}, 'groups': [port(BANDWIDTH, 1000,
                                             'CUSTOM_PHYSNET_B')]},
         ['E'], ['e2']),
    Case('7', {'flavor': {},
               'groups': [port(BANDWIDTH, 1000, 'CUSTOM_PHYSNET_A'),
                          port(PACKETS, 10, requester_id='packets')],
               'levels': {'root_required': ['CUSTOM_ROOT'],
                          'same_subtree': [[PORT, 'packets']]}},
         ['E'], ['e0e1']),
    Case('8', {'flavor': {},
               'groups': [port(BANDWIDTH, 1000, 'CUSTOM_PHYSNET_B',
                               use_same_provider=False)]},
         ['E'], ['e2']),
    Case('9-none', grouped(('resources1:VGPU', '1'), ('resources2:VGPU', '1'),
                           ('group_policy', 'none')), ['D']),
    Case('9-isolate', grouped(('resources1:VGPU', '1'),
                              ('resources2:VGPU', '1'),
                              ('group_policy', 'isolate')), ['D'], ['d1d2']),
    Case('9-absent', grouped(('resources1:VGPU', '1'),
                             ('resources2:VGPU', '1')),
         ['D'], stock=NONE),
    Case('10', grouped(('resources1:VCPU', '2'),
                       ('resources1:MEMORY_MB', '1024')),
         ['H'], [''], {'VCPU': 2, 'MEMORY_MB': 1024}, kept='H'),
    Case('11', {'flavor': {}, 'devices': [devices(1)]},
         ['F'], ['f1', 'f2', 'f3', 'f4']),
    Case('12', {'flavor': {}, 'devices': [devices(1),
                                          devices(1, 'CUSTOM_BLUE')]},
         ['F'], ['f1f4', 'f2f4', 'f3f4']),
    Case('13', {**grouped(ONE_CELL), 'devices': [devices(2, '', 'required')]},
         ['F'], ['f1f2', 'f3f4']),
    Case('14', {**grouped(ONE_CELL), 'devices': [devices(3, '', 'required')]},
         [NONE]),
    Case('14-preferred', {**grouped(ONE_CELL),
                          'devices': [devices(3, '', 'preferred')]}, ['F']),
    Case('15', {'flavor': {}, 'devices': [devices(5)]}, [NONE]),
    Case('16', {**grouped(ONE_CELL, **FOUR), 'devices': [functions()]},
         ['B'], kept='ABCF'),
    Case('17-required', {**grouped(ONE_CELL, **FOUR),
                         'devices': [functions(policy='required')]},
         ['B'], kept='ABCF'),
    Case('17-preferred', {**grouped(ONE_CELL, **FOUR),
                          'devices': [functions(policy='preferred')]},
         ['B', 'C'], kept='ABCF'),
    Case('17-socket', {**grouped(ONE_CELL, **FOUR),
                       'devices': [functions(policy='socket')]},
         ['B', 'C'], kept='ABCF'),
    Case('19', {'flavor': {},
                'devices': [{**functions(resource_class='CUSTOM_VF'),
                             'alias_name': 'vf'}]}, ['B', 'C', 'T']),
    Case('20', {'flavor': {}, 'devices': [functions(2)]}, [NONE],
         kept='BC', count=2),
    Case('20-three', {'flavor': {}, 'devices': [functions()]}, ['BBC'],
         kept='BC', count=3),
    Case('20-pages', grouped(('hw:mem_page_size', '2MB')), ['BBC'],
         kept='BC', count=3),
    Case('21', {'flavor': {},
                'devices': [functions(),
                            functions(physical_network='a')]}, ['T']),
    Case('22', grouped(ONE_CELL, *MIXED, **FOUR), ['B', 'C', 'F'],
         amounts={'PCPU': 1, 'VCPU': 3}, kept=STUDIED),
    Case('23', grouped(TWO_CELLS, *MIXED, **FOUR), ['B', 'F'],
         amounts={'PCPU': 1, 'VCPU': 3}, kept=STUDIED),
    Case('24', grouped(PINNED, **FOUR), ['A', 'B', 'C', 'F'], kept=STUDIED),
    Case('24-ten', grouped(PINNED, vcpus=10), ['A'], amounts={'VCPU': 10},
         kept=STUDIED),
    Case('25-isolate', grouped(PINNED, ('hw:cpu_thread_policy', 'isolate')),
         ['A'], amounts={'VCPU': 2}, kept=STUDIED),
    Case('25-require', grouped(PINNED, ('hw:cpu_thread_policy', 'require')),
         ['B', 'C', 'F'], amounts={'PCPU': 2}, kept=STUDIED),
    Case('26', grouped(ONE_CELL, memory_mb=3072), ['A']),
    Case('27', grouped(('hw:mem_page_size', '2MB')), ['B', 'C', 'F'],
         kept='ABCF'),
    Case('27-reserved', grouped(('hw:mem_page_size', '2MB'), memory_mb=2048),
         [NONE], kept='ABCF'),
    Case('28', {**grouped(),
                'cells': [guest_cell(4, 'prefer', 0),
                          guest_cell(2048, 'require', 1)]},
         ['B', 'F'], kept='BF'),
    Case('29', {**grouped(ONE_CELL), 'physnets': ['physA']}, ['B'],
         kept='BG'),
    Case('29-full', {**grouped(ONE_CELL), 'physnets': ['physA']}, [NONE],
         kept='G'),
    Case('30', {**grouped(ONE_CELL), 'physnets': ['physA'],
                'devices': [functions(policy='required')]}, [NONE], kept='B'),
    Case('30-two', {**grouped(TWO_CELLS), 'physnets': ['physA'],
                    'devices': [functions(policy='required')]}, ['B'],
         kept='B'),
    Case('zone', {'flavor': {}, 'zone': 'west'}, ['X1', 'X2']),
    Case('zone-two', {'flavor': {}, 'zone': 'east'}, ['X3X3'], count=2),
    Case('zone-port', {'flavor': {}, 'zone': 'east',
                       'groups': [port(BANDWIDTH, 1000, 'CUSTOM_PHYSNET_A')]},
         ['X3'], ['x3']),
    Case('zone-full', {'flavor': {}, 'zone': 'west'}, [NONE], kept='ABX3'),
    Case('zone-default', {'flavor': {}, 'zone': 'nova'}, ['A']),
    Case('31', grouped(('resources:CUSTOM_LICENSE', '1')), ['A'], ['s']),
]  # fmt: skip


def decide(pair: Pair, case: Case, ours: bool) -> Outcome:
    """Have a scheduler decide a case; nothing is left of it."""
    request = {**case.request}
    if case.kept:
        request['ignored'] = pair.others(case.kept)
    made = [str(uuid.uuid4()) for _ in range(case.count)]
    try:
        chosen = pair.ask(made, **request) or []
    finally:
        pair.forget(ours, made)
    amounts: Counter[str] = Counter()
    for one in chosen:
        for taken in one['allocations'].values():
            amounts.update(taken)
    return Outcome(
        hosts=''.join(sorted(one['host'] for one in chosen)),
        nested=''.join(
            sorted(
                name
                for one in chosen
                for of in one['allocations']
                if (name := pair.names[of]).islower()
            )
        ),
        amounts=amounts,
        groups=[{*one['mappings']} for one in chosen],
        limits=[one['has_numa_limits'] for one in chosen],
    )


def is_allowed(case: Case, outcome: Outcome) -> bool:
    """Whether the study allows what came of a case."""
    return (
        outcome.hosts in case.hosts
        and (case.nested is None or outcome.nested in case.nested)
        and all(
            outcome.amounts[name] == amount
            for name, amount in (case.amounts or {}).items()
        )
    )


def check(pair: Pair, case: Case) -> None:
    """Have our daemon decide a case as well, and compare."""
    stock, ours = pair.stock[case.name], decide(pair, case, ours=True)
    if case.stock is None:
        assert is_allowed(case, stock), stock
        assert bool(stock.hosts) is bool(ours.hosts), (stock, ours)
    else:
        assert stock.hosts == case.stock, stock
    assert is_allowed(case, ours), ours
    if stock.hosts:
        # The same groups, and limits where nova gives some.
        assert stock.groups == ours.groups
        assert stock.limits == ours.limits


def test_requests_come_to_the_same(pair):
    """One test: in several processes both schedulers would start in each."""
    differ = {}
    for case in CASES:
        try:
            check(pair, case)
        except (AssertionError, Failed) as error:
            differ[case.name] = str(error)
    assert differ == {}
