"""A request means the same whichever way it comes, or is refused by name."""

from __future__ import annotations

import json
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_service import errors, policies
from scheduler_service.bus import wire
from scheduler_service.cmd.commands import capacity
from scheduler_service.cmd.commands.inventory import read_document
from scheduler_service.compute.endpoint import ComputeEndpoint
from scheduler_service.http import v1
from scheduler_service.http.access import Guard
from scheduler_service.http.message import HttpRequest
from scheduler_service.model import Request, documents
from scheduler_service.pipeline import HostPipeline
from scheduler_service.request_filters import scope_of
from scheduler_service.rpc.endpoints import SchedulerEndpoint
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from tests.support import nova_wire
from tests.support.documents import ADMIN
from tests.support.nova_wire import thing
from tests.support.services import new_conf

UUIDS = [
    '18d53391-97f1-4297-9e4e-3698c8313d17',
    'be8f00ee-25c1-45c2-911f-dd81d06823b9',
]
GROUP = '1cbce090-58db-43ab-acf3-fb4db2d9117a'
AGGREGATE = '063397db-16f5-4313-97f3-86f5fac2c7dd'
# On the compute interface a zone that no aggregate has, the default one, too,
# restricts nothing; on ours it is a zone of its own, or none.
NOWHERE = ('nova', 'north')
ALIAS = {'vendor_id': '8086', 'product_id': '1572', 'numa_policy': 'required'}
SETTINGS = Settings(
    pci_aliases=(json.dumps({'name': 'nic', **ALIAS}),),
    image_metadata_prefilter=True,
    query_placement_for_image_type_support=True,
)
HOSTS = table(
    {
        'hosts': [{'host': name} for name in 'abc'],
        'aggregates': [
            {
                'id': number,
                'uuid': uuid,
                'hosts': [host],
                'metadata': {'availability_zone': zone},
            }
            for number, (uuid, host, zone) in enumerate(
                [(AGGREGATE, 'a', 'west'), (GROUP, 'b', 'east')]
            )
        ],
    }
)
EVERY = HOSTS.topology.aggregates
PIPELINE = HostPipeline([], [], SETTINGS, check_room=False)
# What says where a request may go at all.
PLACES = ('requested_destination', 'ignore_hosts', 'force_hosts',
          'availability_zone', 'aggregates')  # fmt: skip
booleans = st.sampled_from(['true', 'True', 'yes', 'no', 'false', '1', 'x'])
verdicts = st.sampled_from(['required', 'required', 'forbidden', 'maybe'])
counts = st.sampled_from(['0', '1', '2', ' 3 ', 'x', '-1', '1.5', '4'])


def words(*some: str) -> st.SearchStrategy[str]:
    """Return some words, and seldom one that means nothing."""
    return st.sampled_from([*some, *some, *some, 'nonsense'])


POLICIES = words('dedicated', 'mixed', 'shared')
THREADS = words('prefer', 'isolate', 'require')
MODELS = words('amd-sev', 'amd-sev-es', 'amd-sev-snp', 'intel-tdx')
ADDRESSES = words('emulate', 'passthrough')
DISTANCES = words('legacy', 'preferred', 'required', 'socket')
PAGES = words('small', 'large', 'any', '2048', '2MB')
SPECS = {
    'resources:VCPU': counts,
    'resources:PCPU': counts,
    'resources:MEMORY_MB': counts,
    'resources:DISK_GB': counts,
    'resources:VGPU': counts,
    'resources:CUSTOM_GOLD': counts,
    'resources1:VGPU': counts,
    'resources1:VCPU': counts,
    'resources_NET:CUSTOM_N': counts,
    'trait:CUSTOM_A': verdicts,
    'trait:HW_CPU_HYPERTHREADING': verdicts,
    'trait1:CUSTOM_B': verdicts,
    'trait_NET:CUSTOM_C': verdicts,
    'group_policy': words('none', 'isolate'),
    'hw:cpu_policy': POLICIES,
    'hw:cpu_thread_policy': THREADS,
    'hw:cpu_dedicated_mask': words('0', '^0', '0-1'),
    'hw:cpu_realtime': booleans,
    'hw:cpu_realtime_mask': words('^0', '1'),
    'hw:emulator_threads_policy': words('isolate', 'share'),
    'hw:numa_nodes': words('1', '2', '2', '4'),
    'hw:numa_cpus.0': words('0-1', '0'),
    'hw:numa_cpus.1': words('2,3', '1-3'),
    'hw:numa_mem.0': words('512'),
    'hw:numa_mem.1': words('512', '1'),
    'hw:mem_page_size': PAGES,
    'hw:mem_encryption': booleans,
    'hw:mem_encryption_model': MODELS,
    'hw:locked_memory': booleans,
    'hw:pmem': words('6gb', '6gb,b-c'),
    'hw:tpm_version': words('1.2', '2.0'),
    'hw:tpm_model': words('tpm-tis', 'tpm-crb'),
    'hw:tpm_secret_security': words('user', 'host', 'deployment'),
    'hw:maxphysaddr_mode': ADDRESSES,
    'hw:pci_numa_affinity_policy': DISTANCES,
    'hw:virtio_packed_ring': booleans,
    'hw:sound_model': words('virtio', 'ich6'),
    'hw:ephemeral_encryption': booleans,
    'hw:ephemeral_encryption_format': words('luks'),
    'os:secure_boot': words('required', 'optional', 'disabled'),
    'pci_passthrough:alias': words('nic:1', ' nic : 2', 'nic:1,nic:1'),
    'capabilities:hypervisor_type': st.just('s== QEMU'),
}
SIZES = {'': None, 'small': -1, 'large': -2, 'any': -3, '2048': 2048}
flags = st.booleans()
PROPERTIES: dict[str, st.SearchStrategy[Any]] = {
    'traits_required': st.sampled_from(
        [['CUSTOM_I'], ['CUSTOM_I', 'HW_CPU_HYPERTHREADING']]
    ),
    'hw_cpu_policy': POLICIES,
    'hw_cpu_thread_policy': THREADS,
    'hw_cpu_realtime_mask': words('^0', '1'),
    'hw_numa_nodes': st.sampled_from([1, 2, 2]),
    'hw_numa_cpus': st.sampled_from([[[0, 1], [2, 3]], [[0], [1, 2, 3]]]),
    'hw_numa_mem': st.sampled_from([[512, 512], [256, 768]]),
    'hw_mem_page_size': PAGES,
    'hw_mem_encryption': flags,
    'hw_mem_encryption_model': MODELS,
    'hw_locked_memory': flags,
    'hw_tpm_version': words('1.2', '2.0'),
    'hw_tpm_model': words('tpm-tis', 'tpm-crb'),
    'hw_maxphysaddr_mode': ADDRESSES,
    'hw_pci_numa_affinity_policy': DISTANCES,
    'hw_virtio_packed_ring': flags,
    'hw_sound_model': words('virtio'),
    'hw_ephemeral_encryption': flags,
    'hw_ephemeral_encryption_format': words('luks'),
    'hw_firmware_type': words('uefi', 'bios'),
    'hw_firmware_stateless': flags,
    'hw_disk_bus': words('virtio', 'scsi'),
    'hw_vif_model': words('e1000e'),
    'hw_architecture': words('x86_64'),
    'os_secure_boot': words('required', 'optional', 'disabled'),
}


OF = ('cpus', 'mem')
# Names that mean something, or more, together.
TOGETHER = [
    ['hw:cpu_policy', 'hw:cpu_thread_policy', 'hw:emulator_threads_policy'],
    ['hw:cpu_policy', 'hw:cpu_dedicated_mask', 'hw:numa_nodes'],
    ['hw:cpu_policy', 'hw:cpu_realtime', 'hw:cpu_realtime_mask'],
    ['hw:numa_nodes', *(f'hw:numa_{of}.{at}' for at in '01' for of in OF)],
    ['hw:mem_encryption', 'hw:mem_encryption_model'],
    ['hw:tpm_version', 'hw:tpm_model', 'hw:tpm_secret_security'],
    ['hw:ephemeral_encryption', 'hw:ephemeral_encryption_format'],
    ['hw:locked_memory', 'hw:mem_page_size'],
    ['resources_NET:CUSTOM_N', 'trait_NET:CUSTOM_C', 'group_policy'],
    ['hw_numa_nodes', 'hw_numa_cpus', 'hw_numa_mem'],
    ['hw_mem_encryption', 'hw_mem_encryption_model'],
    ['hw_tpm_version', 'hw_tpm_model'],
    ['hw_ephemeral_encryption', 'hw_ephemeral_encryption_format'],
    ['hw_firmware_type', 'hw_firmware_stateless'],
    ['hw_cpu_policy', 'hw_cpu_thread_policy'],
]


@st.composite
def some_of(draw: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Return values for a few of the names."""
    rng = draw(st.randoms(use_true_random=False))
    names = rng.sample(sorted(values), rng.randint(0, 2))
    if rng.random() < 0.5:
        names += rng.choice(
            [some for some in TOGETHER if {*some} <= values.keys()]
        )
    return {name: draw(values[name]) for name in dict.fromkeys(names)}


small = st.integers(0, 4)
flavors = st.fixed_dictionaries(
    {
        'flavorid': st.just('1'),
        'name': st.just('f'),
        'vcpus': st.sampled_from([1, 2, 4, 4]),
        'memory_mb': st.just(1024),
        'root_gb': small,
        'ephemeral_gb': small,
        'swap': st.sampled_from([0, 1, 1024, 1025]),
        'extra_specs': some_of(SPECS),
    }
)
some_hosts = st.sampled_from([[], ['a'], ['a', 'B']])
requests = st.fixed_dictionaries(
    {
        'project_id': st.just('p'),
        'instance_uuids': st.sampled_from([UUIDS, UUIDS[:1]]),
        'flavor': flavors,
        'image': st.fixed_dictionaries(
            {
                'id': st.just('i'),
                'disk_format': st.sampled_from(['qcow2', 'raw']),
                'properties': some_of(PROPERTIES),
            }
        ),
        'boot_from_volume': flags,
        'force_hosts': some_hosts,
        'force_nodes': some_hosts,
        'ignore_hosts': some_hosts,
    },
    optional={
        'availability_zone': st.sampled_from(['west', 'east', *NOWHERE]),
        'instance_group': st.just(GROUP),
        'scheduler_hints': st.fixed_dictionaries(
            {},
            optional={
                'same_host': st.just(UUIDS[:1]),
                'different_host': st.just(UUIDS),
                'query': st.just(['[">=","$free_ram_mb",1024]']),
            },
        ),
        'requested_destination': st.fixed_dictionaries(
            {
                'aggregates': st.sampled_from([[], [AGGREGATE]]),
                'forbidden_aggregates': st.sampled_from([[], [GROUP]]),
            },
            optional={'host': st.just('a'), 'node': st.just('a')},
        ),
    },
)


class Recorder:
    """In place of a scheduler: has the request that it got last."""

    def __init__(self) -> None:
        self.got: Any = None

    def select_destinations(self, request: Request, *_: Any, **__: Any) -> Any:
        self.got = request
        return Future()

    def explain(self, request: Request, *_: Any) -> Any:
        self.got = request
        done: Future[Any] = Future()
        done.set_result({})
        return done

    def reject(self, method: str, error: Exception, *_: Any) -> None:
        self.got = error

    def snapshot(self) -> Any:
        return SimpleNamespace(hosts=HOSTS)


@pytest.fixture(scope='module')
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope='module')
def enforcer() -> policies.Enforcer:
    return policies.Enforcer(new_conf())


@pytest.fixture(scope='module')
def faces(recorder: Recorder, enforcer: Any, tmp_path_factory: Any) -> Any:
    """Functions that have a face read a document of ours, by name."""
    scheduler: Any = recorder
    endpoint = SchedulerEndpoint(scheduler, enforcer, 'here', Any)
    pages = v1.V1(scheduler, Guard(None, False, ['admin']), enforcer)
    file = tmp_path_factory.mktemp('faces') / 'request'

    def by_message(document: Any) -> None:
        args = {'request': document, 'claim': False}
        message = {'method': 'select_destinations', 'args': args}
        endpoint.select_destinations(wire.Request(scheduler, message, ADMIN))

    def by_http(document: Any) -> None:
        body = json.dumps({'request': document}).encode()
        pages.explain(HttpRequest('POST', '/v1/explain', '', {}, None), body)

    def by_yaml(document: Any) -> None:
        file.write_bytes(documents.dump(document, 'yaml'))
        recorder.got = documents.checked_request(read_document(str(file)))

    def by_capacity(document: Any) -> None:
        file.write_bytes(documents.dump(document))
        recorder.got = capacity._request(str(file))

    return {
        'message': by_message,
        'http': by_http,
        'yaml': by_yaml,
        'capacity': by_capacity,
    }


@pytest.fixture(scope='module')
def compute(recorder: Recorder) -> Any:
    """A function that has the compute interface read arguments."""
    scheduler: Any = recorder
    rebuilds: Any = SimpleNamespace(is_verified=lambda request: True)
    endpoint = ComputeEndpoint(scheduler, rebuilds, lambda: None, False)

    def read_(arguments: Any) -> None:
        message = {
            'method': 'select_destinations',
            'args': arguments,
            'version': '4.5',
        }
        endpoint.select_destinations(
            wire.Request(scheduler, message, ADMIN, msg_id='1')
        )

    return read_


def read(recorder: Recorder, face: Any, document: Any) -> Any:
    """Return the request that a face makes of a document, or its error."""
    recorder.got = None
    try:
        face(document)
    except errors.InvalidRequest as error:
        recorder.got = error
    assert recorder.got is not None
    return recorder.got


def meaning(made: Any) -> Any:
    """Return what a request means; a text: where it is refused."""
    if isinstance(made, Request):
        try:
            return _meaning(made)
        except errors.InvalidRequest as error:
            made = error
    assert isinstance(made, errors.InvalidRequest)
    return made.facts['at']


def places(made: Request) -> list[str]:
    """Return the hosts that a request may go to, whatever it needs."""
    left = [True] * len(HOSTS)
    for plugin, mask in PIPELINE.filter_results(HOSTS, made.with_ids()):
        if plugin.name in PLACES:
            left = [old and new for old, new in zip(left, mask, strict=True)]
    return [HOSTS.host_at(row) for row, passes in enumerate(left) if passes]


def _meaning(made: Request) -> dict[str, Any]:
    plain = made.without_pcpu(True)
    return {
        'caller': (made.project_id, made.instance_uuids),
        'amounts': (made.own_resources, made.resources, made.disk_mb),
        'as VCPU': plain and plain.resources,
        'groups': (made.provider_groups, made.policy_of_groups),
        'traits': (
            made.required_traits,
            made.forbidden_traits,
            made.root_required,
            made.known_traits,
            made.tree_traits,
            made.requested_traits,
        ),
        'cells': made.guest,
        'devices': made.devices(SETTINGS),
        'features': (
            scope_of(made, EVERY, SETTINGS).required_traits,
            scope_of(made, EVERY, SETTINGS).forbidden_traits,
        ),
        'zone': made.availability_zone,
        'places': places(made),
        'group': made.groups,
        'hints': {name: made.hint(name) for name in made.scheduler_hints},
        'hosts': (
            made.force_hosts,
            made.force_nodes,
            made.ignored,
            made.requested_destination,
        ),
        'image': made.image_pairs,
    }


def with_properties(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document with the properties as an image has them."""
    properties: dict[str, Any] = {}
    for name, value in document['image']['properties'].items():
        if name == 'traits_required':
            properties |= {f'trait:{trait}': 'required' for trait in value}
        elif isinstance(value, list):
            properties |= {
                f'{name}.{at}': ','.join(map(str, one))
                if isinstance(one, list)
                else one
                for at, one in enumerate(value)
            }
        else:
            properties[name] = value
    image = {**document['image'], 'properties': properties}
    return {**document, 'image': image}


def as_sent(document: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the RequestSpec of a compute service for a document."""
    image, sent = document['image'], document['image']['properties']
    same = ('project_id', 'availability_zone', 'scheduler_hints',
            'force_hosts', 'force_nodes', 'ignore_hosts')  # fmt: skip
    fields = {name: document.get(name) for name in same}
    group = document.get('instance_group')
    target = document.get('requested_destination')
    return nova_wire.spec(
        flavor=thing('Flavor', '1.2', **document['flavor']),
        image=thing(
            'ImageMeta',
            '1.8',
            **{**image, 'properties': thing('ImageMetaProps', '1.44', **sent)},
        ),
        is_bfv=document['boot_from_volume'],
        instance_group=group and thing('InstanceGroup', '1.11', uuid=group),
        requested_destination=target and thing('Destination', '1.4', **target),
        **fields,
        **more,
    )


def worked_out(own: Request) -> dict[str, Any]:
    """Return the cells and devices of a request as nova's API sends them."""
    cells, first = [], 0
    for cell in own.guest.cells if own.guest else ():
        between, last = first + cell.shared, first + cell.shared
        last += cell.dedicated
        mixed = 'mixed' if cell.shared else 'dedicated'
        cells.append(
            thing(
                'InstanceNUMACell',
                '1.6',
                cpuset=[*range(first, between)],
                pcpuset=[*range(between, last)],
                memory=cell.memory,
                pagesize=SIZES.get(cell.page_size, cell.page_size),
                cpu_policy=mixed if own.guest.pinned else None,
                cpu_thread_policy=cell.thread_policy or None,
            )
        )
        first = last
    devices = [
        thing(
            'InstancePCIRequest',
            '1.4',
            alias_name=device.name,
            count=device.needed,
            spec=[dict(one) for one in device.alternatives],
            numa_policy=device.policy,
        )
        for device in own.devices(SETTINGS)
    ]
    isolates = bool(own.guest and own.guest.isolated_emulator)
    return {
        'numa_topology': thing(
            'InstanceNUMATopology',
            '1.3',
            cells=cells,
            emulator_threads_policy='isolate' if isolates else None,
        )
        if cells
        else None,
        'pci_requests': thing('InstancePCIRequests', '1.1', requests=devices),
    }


@given(requests)
def test_a_compute_service_asks_for_the_same(
    recorder, faces, compute, document
):
    own = read(recorder, faces['message'], with_properties(document))
    expected = meaning(own)

    def asked(**more: Any) -> Any:
        spec = as_sent(document, **more)
        uuids = document['instance_uuids']
        return meaning(
            read(
                recorder, compute, {'spec_obj': spec, 'instance_uuids': uuids}
            )
        )

    found = asked()
    if isinstance(expected, str):
        # What means nothing is left out, or refused as well.
        return
    if own.availability_zone in NOWHERE:
        anywhere = own.having(availability_zone=None)
        expected['places'] = places(anywhere)
    assert found == expected
    assert asked(**worked_out(own)) == expected


@given(requests)
def test_our_own_interfaces_read_a_request_alike(recorder, faces, document):
    made = with_properties(document)
    found = {
        name: meaning(read(recorder, face, made))
        for name, face in faces.items()
    }
    expected = found['message']
    assert found == dict.fromkeys(found, expected)
