"""Requests and hosts are judged as nova's own functions judge them."""

from __future__ import annotations

import json
import random
import subprocess
from collections import Counter
from typing import Any
from urllib.parse import parse_qsl

import pytest

from scheduler_service import errors
from scheduler_service.columns import Overlay
from scheduler_service.compute import translation as compute_request
from scheduler_service.compute.placement import candidates
from scheduler_service.compute.translation import translate
from scheduler_service.filters.hosts.numa_topology_filter import (
    NUMATopologyFilter,
)
from scheduler_service.filters.hosts.pci_passthrough_filter import (
    PciPassthroughFilter,
)
from scheduler_service.model import documents
from scheduler_service.model.requirements import amounts
from scheduler_service.model.requirements.devices import check_aliases
from scheduler_service.pipeline import HostPipeline
from scheduler_service.request_filters import scope_of
from scheduler_service.settings import Settings
from scheduler_service.testing import table
from tests.support.interop import NOVA_ENVIRONMENT
from tests.support.paths import ROOT
from tests.support.plugins import inventory, passing

pytestmark = pytest.mark.slow
CLASSES = """
import json, os_resource_classes
print(json.dumps(sorted(os_resource_classes.STANDARDS)))
"""
ALIASES = 'pci_passthrough:alias'
PORT = '1cbce090-58db-43ab-acf3-fb4db2d9117a'


@pytest.fixture(scope='module')
def judged(nova: Any) -> Any:
    """What nova says of the cases below, by kind.

    Of all at once: its modules take seconds to be imported.
    """
    cases = {
        'requests': request_cases(),
        'images': image_cases(),
        'versions': [{}],
        'topologies': topology_cases(),
        'aliases': alias_cases(),
        'asked': asking_cases(),
        'numa': fitting_cases(),
        'devices': device_cases(),
        'several': counting_cases(),
    }
    done = subprocess.run(
        [nova, '-W', 'ignore', ROOT / 'tests/interop/nova_verdicts.py'],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=300,
        cwd='/',
        env=NOVA_ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return {
        kind: list(zip(made, found[kind], strict=True))
        for kind, made in cases.items()
    }


def test_resource_classes_are_those_of_the_compute_service(nova):
    done = subprocess.run(
        [nova, '-c', CLASSES], capture_output=True, check=True, cwd='/'
    )
    assert sorted(amounts._CLASSES) == json.loads(done.stdout)


SPECS: list[dict[str, str]] = [
    {},
    {'resources:VGPU': '1', 'trait:CUSTOM_NVIDIA_11': 'required'},
    {'resources:VGPU': '1', 'trait:CUSTOM_NVIDIA_11': 'forbidden'},
    {'hw:mem_encryption': 'true'},
    {'hw:mem_encryption': 'true', 'hw:mem_encryption_model': 'amd-sev-es'},
    {'hw:mem_encryption': 'true', 'hw:mem_encryption_model': 'amd-sev-snp'},
    {'hw:mem_encryption': 'true', 'hw:mem_encryption_model': 'intel-tdx'},
    {'resources1:VCPU': '2', 'resources1:MEMORY_MB': '1024'},
    {'resources1:VGPU': '1', 'trait1:CUSTOM_A': 'maybe'},
    {'resources:VGPU': '1', 'resources3:VGPU': '0'},
    {'resources1:VCPU': '0', 'resources1:VGPU': '1', 'resources4:VGPU': '0'},
    {'resources3:VGPU': '0', 'trait3:CUSTOM_A': 'required'},
    {'resources1:VGPU': '1', 'resources2:WRONG': '1'},
    {'resources1:VGPU': '1', 'group_policy': 'isolated'},
    {'resources1:VGPU': '1', 'resources2:VGPU': '1', 'group_policy': 'none'},
    {
        'resources1:VGPU': '1',
        'resources2:VGPU': '1',
        'trait2:CUSTOM_B': 'forbidden',
        'group_policy': 'isolate',
    },
    {'resources:VCPU': '0', 'resources:CUSTOM_BAREMETAL_X': '1'},
    {'resources:WRONG': '1', 'resources:VGPU': ' 2 '},
    {'hw:cpu_policy': 'dedicated', 'hw:cpu_thread_policy': 'isolate'},
    {'hw:cpu_policy': 'dedicated', 'hw:emulator_threads_policy': 'isolate'},
    {'hw:cpu_policy': 'mixed', 'hw:cpu_dedicated_mask': '0'},
    {
        'hw:cpu_policy': 'mixed',
        'hw:cpu_dedicated_mask': '0',
        'hw:numa_nodes': '2',
    },
    {
        'hw:cpu_policy': 'mixed',
        'hw:cpu_realtime': 'yes',
        'hw:cpu_realtime_mask': '^0-1',
    },
    {'hw:pci_numa_affinity_policy': 'socket'},
    {'hw:tpm_version': '2.0', 'hw:tpm_model': 'tpm-crb'},
    {'hw:pmem': '6gb,6gb'},
]
IMAGES = [
    {'traits_required': ['CUSTOM_A'], 'os_secure_boot': 'required'},
    {
        'hw_mem_encryption': 'true',
        'hw_mem_encryption_model': 'amd-sev-es',
        'hw_firmware_type': 'uefi',
        'hw_machine_type': 'q35',
    },
]
ENCRYPTED = {
    'hw_firmware_type': 'uefi',
    'hw_machine_type': 'q35',
    'hw_firmware_stateless': 'true',
    'hw_video_model': 'none',
}


def request_cases() -> list[dict[str, Any]]:
    """Return requests for which placement is asked."""
    cases: list[dict[str, Any]] = [
        {
            'flavor': {'extra_specs': specs},
            'image': ENCRYPTED if 'hw:mem_encryption' in specs else {},
        }
        for specs in SPECS
    ]
    cases += [{'flavor': {'extra_specs': {}}, 'image': one} for one in IMAGES]
    cases.append(
        {
            'flavor': {'extra_specs': {}},
            'groups': [
                {
                    'requester_id': PORT,
                    'resources': {'NET_BW_EGR_KILOBIT_PER_SEC': 1000},
                    'use_same_provider': False,
                }
            ],
        }
    )
    return cases


def test_placement_is_asked_for_the_same(judged):
    for case, result in judged['requests']:
        made = translate(result['spec'], [result['uuid']], {}).request
        asked = parse_qsl(candidates.query_of(made))
        traits = candidates._traits(
            made.required_traits, made.forbidden_traits
        )
        if traits and ('required', traits) not in asked:
            # The host itself has what no provider below it may have.
            assert not any(made.tree_traits)
            asked.append(('required', traits))
        theirs = parse_qsl(result['query'])
        assert sorted(asked) == sorted(
            (name, value) for name, value in theirs if name != 'limit'
        ), case


OF_DEVICES = {
    'hw_cdrom_bus': ['sata', 'ide'],
    'hw_disk_bus': ['virtio', 'scsi', 'lxc', 'fdc'],
    'hw_video_model': ['qxl', 'virtio', 'gop', 'bochs', 'none'],
    'hw_vif_model': ['e1000e', 'rtl8139', 'VirtualE1000', 'sriov'],
    'hw_architecture': ['x86_64', 'amd64', 'I386', 'armv7l', 'ppc64', 'x64'],
    'architecture': ['aarch64', 'i686'],
    'hw_emulation_architecture': ['aarch64', 'x86_64', 'ia64', 'riscv64'],
    'hw_viommu_model': ['intel', 'auto'],
}
FORMATS = ['qcow2', 'raw', 'vmdk', 'iso', 'gpt', 'docker', 'vhdx']


def image_cases() -> list[dict[str, Any]]:
    """Return images with properties of devices and processors."""
    rng = random.Random(7)
    return [
        {
            'disk_format': rng.choice(FORMATS),
            'properties': {
                key: rng.choice(values)
                for key, values in OF_DEVICES.items()
                if rng.random() < 0.2
            },
        }
        for _ in range(500)
    ]


def test_traits_of_images_are_those_that_nova_requires(judged):
    every = table({'hosts': [{'host': 'a'}]}).topology.aggregates
    settings = Settings(
        image_metadata_prefilter=True,
        query_placement_for_image_type_support=True,
    )
    for case, theirs in judged['images']:
        made = documents.checked_request({'image': case})
        if theirs is not None:
            ours = scope_of(made, every, settings).required_traits
            assert sorted(ours) == theirs, case


# Parts of a request that older objects lack: up to which minor version.
LOST: dict[str, dict[str, int]] = {
    'RequestSpec': {
        'requested_destination': 5,
        'user_id': 8,
        'numa_topology': 9,
        'boot_from_volume': 10,
        'resource_groups': 11,
        'root_traits': 12,
        'same_subtree': 12,
    },
    'ImageMetaProps': {'image': 37},
    'InstanceNUMATopology': {'numa_topology': 2},
    'InstanceNUMACell': {'numa_topology': 2},
    'InstancePCIRequest': {'pci_requests': 1},
    'Destination': {'requested_destination': 3},
    'RequestGroup': {'resource_groups': 2, 'same_subtree': 3},
    'RequestLevelParams': {'same_subtree': 0},
}


def test_objects_of_every_release_are_read(judged):
    ((_, sent),) = judged['versions']

    def parts(spec: Any) -> dict[str, Any]:
        made = translate(spec, [PORT], {'user_id': 'caller'})
        found = compute_request.msgspec.to_builtins(made.request)
        return {**found, 'group': made.group}

    newest = parts(sent[-1][2])
    for name, minor, spec in sent:
        found = parts(spec)
        lost = {
            part
            for part in {*found, *newest}
            if found.get(part) != newest.get(part)
        }
        assert lost == {
            part for part, last in LOST.get(name, {}).items() if minor <= last
        }, (name, minor)
    assert len(sent) > 60


POLICIES = ['dedicated', 'mixed', 'shared']
THREADS = ['prefer', 'isolate', 'require']
STATED = {
    'hw:cpu_policy': [*POLICIES, 'x'],
    'hw:cpu_thread_policy': [*THREADS, 'x'],
    'hw:cpu_dedicated_mask': ['0', '0-1', '^0', '0-3', '9', '1,3'],
    'hw:cpu_realtime': ['true', 'no'],
    'hw:cpu_realtime_mask': ['0', '^0-1', '1-2'],
    'hw:emulator_threads_policy': ['isolate', 'share', 'x'],
    'hw:numa_nodes': ['1', '2', '3', '0', 'x'],
    'hw:numa_cpus.0': ['0-1', '0', '0-3', '3-0'],
    'hw:numa_cpus.1': ['2-3', '1-3,^9', '2,3'],
    'hw:numa_mem.0': ['512', '1024'],
    'hw:numa_mem.1': ['512'],
    'hw:mem_page_size': ['small', 'any', '2048', '2MB', '2M', 'x', '16Mb'],
    'hw:pmem': ['a', 'a,b'],
    'hw:locked_memory': ['true', 'false'],
    'resources:PCPU': ['4', '5', '3'],
    'resources:VCPU': ['4'],
}
OF_IMAGES = {
    'hw_cpu_policy': POLICIES,
    'hw_cpu_thread_policy': THREADS,
    'hw_numa_nodes': [1, 2],
    'hw_mem_page_size': ['small', '2MB', 'any'],
}
WORDS = {-1: 'small', -2: 'large', -3: 'any', None: ''}


def topology_cases() -> list[dict[str, Any]]:
    """Return extra specs and image properties about CPUs and memory."""
    rng = random.Random(11)

    def some(values: dict[str, list[Any]], share: float) -> dict[str, Any]:
        return {
            key: rng.choice(each)
            for key, each in values.items()
            if rng.random() < share
        }

    return [
        {'specs': some(STATED, 0.15), 'image': some(OF_IMAGES, 0.1)}
        for _ in range(2000)
    ]


def test_cells_follow_from_flavor_and_image_as_nova_says(judged):
    placed = 0
    for case, theirs in judged['topologies']:
        flavor = {
            'vcpus': 4,
            'memory_mb': 1024,
            'extra_specs': case['specs'],
        }
        image = {'properties': case['image']}
        if isinstance(theirs, str):
            with pytest.raises(errors.InvalidRequest):
                documents.checked_request({'flavor': flavor, 'image': image})
            continue
        guest = documents.checked_request(
            {'flavor': flavor, 'image': image}
        ).guest
        placed += guest is not None
        assert (guest and [list(cell) for cell in guest.cells]) == (
            theirs
            and [[*one[:4], WORDS.get(one[4], str(one[4]))] for one in theirs]
        ), case
    assert placed > 100


VENDORS = ['8086', '10DE', '10de', '8086', '80861', '', '0x80', ' 8086']
PLACES = ['legacy', 'preferred', 'required', 'socket']
KEYS: dict[str, list[Any]] = {
    'name': ['nic', 'gpu', ' nic', 'gpu ', 'a b', '', '  ', 'x' * 256,
             ' ' + 'x' * 256, 7, None],
    'vendor_id': [*VENDORS, 8086, None],
    'product_id': ['1572', *VENDORS],
    'device_type': ['type-PCI', 'type-PF', 'type-VF', 'type-VF', 'vdpa', ''],
    'numa_policy': [*PLACES, 'near', '', None],
    'capability_type': ['pci', 'pci', 'usb'],
    'resource_class': ['CUSTOM_GPU', 'vgpu', ''],
    'traits': ['CUSTOM_A', 'blue,CUSTOM_B', ''],
    'live_migratable': ['true', 'Yes', ' no ', '0', 'off', 'perhaps', '',
                        True],
    'device_id': ['1'],
    'address': ['0000:81:00.0'],
}  # fmt: skip
USUAL = {'name': 'nic', 'vendor_id': '8086', 'product_id': '1572'}
ASKED = [
    'nic:1', 'gpu:2', ' nic : 2 ', 'nic:1, gpu:1', 'nic:1,nic:2', 'a b:1',
    'nic:01', 'nic: 3', 'nic', 'nic:', 'nic:x', 'nic:1:1', 'nic:1,', ',', '',
    'none:1', 'NIC:1', ':1', 'nic:1;gpu:1', 'nic:1.5', 'nic:+2', 'nic:-1',
    'nic:0', 'nic:4096',
]  # fmt: skip
# Texts that are no alias, or odd ones.
TEXTS = [
    "{'name': 'nic', 'vendor_id': '8086', 'product_id': '1572'}", '', '{}',
    '[]', 'null', 'nic', '"nic"', '[{"name": "nic"}]', '{"name": "nic"',
    '{"name": "nic", "vendor_id": "8086", "product_id": "1572"} ',
    ' {"name": "gpu", "vendor_id": "10de", "product_id": "1572"}',
    '{"name": "gpu", "name": "nic", "vendor_id": "8086", "product_id": "1"}',
    '{"name": "nic", "vendor_id": "8086", "product_id": "1572",}',
    '{"name": "nic", "vendor_id": "8086", "product_id": "1572"}'
    '{"name": "gpu", "vendor_id": "8086", "product_id": "1572"}',
    '\n{"name": "nic",\n "vendor_id": "8086",\n "product_id": "1572"}\n',
]  # fmt: skip

BY_CLASS = '{"name": "nic", "resource_class": "CUSTOM_A"}'
OF_TYPE = '{"name": "nic", "device_type": "type-VF", %s}'
PAIRS = [
    [BY_CLASS],
    [OF_TYPE % '"resource_class": "CUSTOM_A"'] * 2,
    [OF_TYPE % '"vendor_id": "8086", "product_id": "1572"'] * 2,
    [
        OF_TYPE % '"vendor_id": "8086", "product_id": "1572"',
        OF_TYPE % '"resource_class": "CUSTOM_A"',
    ],
]
# What placement alone is asked for.
PLACED = ('resource_class', 'traits')


def alias_cases() -> list[dict[str, Any]]:
    """Return aliases with extra specs and properties that ask for some."""
    rng = random.Random(46)

    def text() -> str:
        if rng.random() < 0.03:
            return rng.choice(TEXTS)
        stated = dict(USUAL)
        for key in rng.sample([*KEYS], rng.choice([0, 0, 1, 2])):
            # Of two names, one is mostly there twice.
            few = 4 if rng.random() < 0.8 else len(KEYS[key])
            stated[key] = rng.choice(KEYS[key][:few])
        for key in USUAL:
            if rng.random() < 0.05:
                del stated[key]
        return json.dumps(stated)

    cases = [
        {'aliases': texts, 'specs': {ALIASES: 'nic:1'}, 'image': {}}
        for texts in [*([one] for one in TEXTS), *PAIRS]
    ]
    policy = 'pci_numa_affinity_policy'
    for _ in range(2000):
        texts = [text() for _ in range(rng.choice([1, 1, 2]))]
        specs, image = {ALIASES: rng.choice(ASKED)}, {}
        if rng.random() < 0.2:
            specs[f'hw:{policy}'] = rng.choice([*PLACES, 'near'])
        if rng.random() < 0.2:
            image[f'hw_{policy}'] = rng.choice(PLACES)
        cases.append({'aliases': texts, 'specs': specs, 'image': image})
    return cases


def our_devices(case: dict[str, Any]) -> Any:
    """Return the devices of a case by our own interface; None: refused."""
    flavor = {'vcpus': 4, 'memory_mb': 1024, 'extra_specs': case['specs']}
    settings = Settings(pci_aliases=tuple(case['aliases']))
    try:
        made = documents.checked_request(
            {'flavor': flavor, 'image': {'properties': case['image']}}
        )
        found = made.devices(settings)
    except errors.InvalidRequest:
        return None
    return [
        [one.name, one.needed, [dict(each) for each in one.alternatives],
         one.policy]
        for one in found
    ]  # fmt: skip


def is_ours_alone(devices: list[Any]) -> bool:
    """Whether our own interface refuses devices that nova asks for.

    It does so for a class without ids, and for less than one device.
    """
    return any(
        count < 1 or not spec[0].keys() >= {'vendor_id', 'product_id'}
        for _, count, spec, _ in devices
    )


def test_aliases_are_read_as_nova_reads_them(judged):
    kinds: Counter[str] = Counter()
    for case, theirs in judged['aliases']:
        texts = tuple(case['aliases'])
        try:
            check_aliases(texts)
        except ValueError:
            # Nobody could tell which alias of no name is meant.
            named = not any('"name": "  "' in text for text in texts)
            assert not (named and theirs['valid']), case
            kinds['invalid'] += 1
            continue
        assert theirs['valid'], case
        found, expected = our_devices(case), theirs['devices']
        if expected is None or is_ours_alone(expected):
            assert found is None, case
            kinds['refused'] += 1
            continue
        for _, _, spec, _ in expected:
            for each in spec:
                for key in PLACED:
                    each.pop(key, None)
        assert found == expected, case
        kinds['asked'] += 1
    assert min(kinds.values()) > 200, kinds


PAGES = [
    [],
    [(4, 262144)],
    [(4, 131072), (2048, 256)],
    [(4, 524288), (2048, 128), (1048576, 1)],
]


def cell(rng: random.Random, number: int) -> dict[str, Any]:
    """Return a cell of a host, of 8 CPUs."""
    cpus = [8 * number + at for at in range(8)]
    shared, dedicated = rng.choice(
        [(cpus, cpus), (cpus[:4], cpus[4:]), (cpus, []), ([], cpus)]
    )
    width = rng.choice([1, 2, 2, 4])
    return {
        'cpuset': shared,
        'pcpuset': dedicated,
        'pinned_cpus': rng.sample(
            dedicated, rng.randint(0, len(dedicated) // 2)
        ),
        'siblings': [cpus[at : at + width] for at in range(0, 8, width)],
        'cpu_usage': rng.choice([0, 0, 2, 6]),
        'memory': rng.choice([1024, 2048, 4096]),
        'memory_usage': rng.choice([0, 0, 512, 1536]),
        'mempages': [
            {
                'size_kb': size,
                'total': total,
                'used': rng.choice([0, 0, total // 2]),
                'reserved': rng.choice([0, 0, total // 4]),
            }
            for size, total in rng.choice(PAGES)
        ],
        'socket': rng.choice([0, 1]),
    }


def guest(
    rng: random.Random, pages: tuple[int, ...] = (-1, -2, -3)
) -> dict[str, Any]:
    """Return the topology of an instance.

    :param pages: words for sizes that it may ask for
    """
    policy = rng.choice([None, 'shared', 'dedicated', 'mixed', 'mixed'])
    cells = []
    for _ in range(rng.choice([1, 1, 2])):
        shared, dedicated = rng.randint(1, 3), rng.randint(1, 4)
        if policy == 'mixed':
            dedicated = rng.randint(0, 3)
        cells.append(
            {
                'cpuset': [] if policy == 'dedicated' else [*range(shared)],
                'pcpuset': [*range(10, 10 + dedicated)]
                if policy in ('dedicated', 'mixed')
                else [],
                'memory': rng.choice([256, 512, 1024, 1025]),
                'pagesize': rng.choice([None, None, *pages, 4, 2048]),
                'cpu_policy': policy,
                'cpu_thread_policy': rng.choice(
                    [None, 'prefer', 'require', 'isolate']
                )
                if policy in ('dedicated', 'mixed')
                else None,
            }
        )
    if policy == 'mixed':
        cells[0]['pcpuset'] = cells[0]['pcpuset'] or [10]
    return {
        'cells': cells,
        'emulator_threads_policy': rng.choice([None, None, 'isolate']),
    }


def stated(
    topology: dict[str, Any], networks: dict[str, Any] | None = None
) -> Any:
    """Return a guest topology as it is translated."""
    wire = compute_request.wire
    return compute_request._numa_topology(
        wire.NumaTopology(
            cells=[wire.NumaCell(**one) for one in topology['cells']],
            emulator_threads_policy=topology['emulator_threads_policy'],
        ),
        wire.NetworkMetadata(**networks) if networks else None,
    )


PHYSNETS = [[], ['a'], ['a', 'b']]


def networked(rng: random.Random, made: dict[str, Any]) -> dict[str, Any]:
    """Return a cell with an affinity of networks, as some have."""
    if rng.random() < 0.5:
        return made
    affinity = {
        'physnets': rng.choice(PHYSNETS),
        'tunneled': rng.random() < 0.3,
    }
    return {**made, 'network_metadata': affinity}


def some_pools(rng: random.Random, cells: int) -> list[dict[str, Any]]:
    """Return the devices of a host with some cells."""
    return [
        {
            'vendor_id': '8086',
            'product_id': '1520',
            'numa_node': rng.choice([*range(cells), None]),
            'count': rng.randint(1, 2),
            'tags': {'dev_type': 'type-VF', **tags},
        }
        for tags in [{}, {'physical_network': 'a'}, {}][: rng.randint(1, 3)]
    ]


def some_requests(rng: random.Random, count: int) -> list[dict[str, Any]]:
    """Return requests for devices."""
    return [
        {
            'count': rng.randint(1, 2),
            'spec': [
                {
                    'vendor_id': '8086',
                    **rng.choice([{}, {'physical_network': 'a'}]),
                }
            ],
            'numa_policy': rng.choice(
                ['legacy', 'preferred', 'required', 'socket']
            ),
        }
        for _ in range(count)
    ]


def with_alternatives(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return requests for devices as a document has them."""
    return [
        {
            'count': one['count'],
            'alternatives': one['spec'],
            'numa_policy': one['numa_policy'],
        }
        for one in requests
    ]


def numa_case(rng: random.Random) -> dict[str, Any]:
    """Return hosts with cells alone, and a guest."""
    hosts = [
        [cell(rng, number) for number in range(rng.choice([1, 2]))]
        for _ in range(6)
    ]
    return {
        'hosts': hosts,
        'guest': guest(rng),
        'cpu_ratio': 1.5,
        'ram_ratio': 1.25,
        'pools': [[] for _ in hosts],
        'requests': [],
        'networks': None,
    }


def near_case(rng: random.Random) -> dict[str, Any]:
    """Return hosts with networks and devices at their cells, and a guest."""
    hosts, pools = [], []
    for _ in range(6):
        count = rng.choice([1, 2, 3])
        hosts.append(
            [networked(rng, cell(rng, number)) for number in range(count)]
        )
        pools.append(some_pools(rng, count))
    requests = some_requests(rng, rng.choice([0, 1, 1, 2]))
    return {
        'hosts': hosts,
        # Nova keeps the page size of the first cell that it tries.
        'guest': {**guest(rng, (-1,)), 'emulator_threads_policy': None},
        'cpu_ratio': 4.0,
        'ram_ratio': 4.0,
        'pools': pools,
        'requests': requests,
        'networks': rng.choice(
            [
                None,
                {'physnets': ['a'], 'tunneled': False},
                {'physnets': ['b', 'c'], 'tunneled': True},
            ]
        ),
    }


# Each has six hosts.
FITTING = 120


def fitting_cases() -> list[dict[str, Any]]:
    """Return cases of cells alone, and as many with networks and devices."""
    cases = []
    for made, seed in ((numa_case, 36), (near_case, 63)):
        rng = random.Random(seed)
        cases += [made(rng) for _ in range(FITTING)]
    return cases


def test_cells_with_devices_and_networks_fit_as_nova_says(judged):
    verdicts = [expected for _, expected in judged['numa']]
    for half in (verdicts[:FITTING], verdicts[FITTING:]):
        assert sum(map(sum, half)) > FITTING / 2
    for case, expected in judged['numa']:
        document = inventory(
            **{
                f'h{at}': {
                    'numa_topology': {'cells': cells},
                    'pci_device_pools': case['pools'][at],
                }
                for at, cells in enumerate(case['hosts'])
            }
        )
        asked = {
            'numa_topology': stated(case['guest'], case['networks']),
            'pci_requests': with_alternatives(case['requests']),
        }
        passed = passing(
            NUMATopologyFilter(),
            document,
            json.loads(compute_request.msgspec.json.encode(asked)),
            cpu_allocation_ratio=case['cpu_ratio'],
            ram_allocation_ratio=case['ram_ratio'],
        )
        assert passed == [f'h{at}' for at, fits in enumerate(expected) if fits]


NEAR = [None, *PLACES]
TYPES = [None, 'type-VF', 'type-PF', 'type-PCI']
MIGRATES = [None, None, None, 'true', 'false']


def some(**values: Any) -> dict[str, Any]:
    """Return values that are not None."""
    return {key: one for key, one in values.items() if one is not None}


def asking_case(rng: random.Random) -> dict[str, Any]:
    """Return aliases, a flavor and an image that name some, and hosts."""
    aliases = []
    for name in ('a', 'b'):
        kind, policy = rng.choice(TYPES), rng.choice(NEAR)
        for _ in range(rng.choice([1, 2]) if kind else 1):
            stated = some(
                name=name,
                vendor_id='8086',
                product_id=rng.choice(['1520', '1520', '15AB']),
                device_type=kind,
                numa_policy=policy,
                live_migratable=rng.choice(MIGRATES),
            )
            aliases.append(json.dumps(stated))
    counts = [('a', rng.choice([1, 1, 2, 3])), ('b', 1)]
    asked = [f'{name}:{count}' for name, count in counts]
    policy = rng.choice([None, None, *PLACES])
    of_flavor = rng.random() < 0.5
    hosts = []
    pools = []
    for _ in range(6):
        count = rng.choice([1, 2, 3])
        # Most have room, so that it is devices that decide.
        free = {'cpu_usage': 0, 'memory': 4096, 'memory_usage': 0}
        hosts.append(
            [
                {
                    **cell(rng, number),
                    **(free if rng.random() < 0.9 else {}),
                    'cpuset': [*range(8 * number, 8 * number + 8)],
                    'mempages': [],
                }
                for number in range(count)
            ]
        )
        pools.append(
            [
                {
                    'vendor_id': '8086',
                    'product_id': rng.choice(['1520', '1520', '15ab']),
                    'numa_node': rng.choice([*range(count), None]),
                    'count': rng.randint(1, 3),
                    'tags': some(
                        dev_type=rng.choice(['type-VF', *TYPES[1:]]),
                        live_migratable=rng.choice(MIGRATES),
                    ),
                }
                for _ in range(rng.randint(1, 4))
            ]
        )
    return {
        'aliases': aliases,
        'specs': some(
            **{
                ALIASES: ','.join(asked[: rng.choice([1, 1, 2])]),
                'hw:numa_nodes': rng.choice([None, '1', '1', '2']),
                'hw:pci_numa_affinity_policy': policy if of_flavor else None,
            }
        ),
        'image': {} if of_flavor else some(hw_pci_numa_affinity_policy=policy),
        'hosts': hosts,
        'pools': pools,
    }


def asking_cases() -> list[dict[str, Any]]:
    """Return requests for devices by their aliases, with hosts."""
    rng = random.Random(5)
    return [asking_case(rng) for _ in range(300)]


def test_devices_that_a_flavor_asks_for_are_near_as_nova_says(judged):
    fit = [sum(expected) for _, expected in judged['asked']]
    assert sum(fit) > 300
    for case, expected in judged['asked']:
        flavor = {'vcpus': 4, 'memory_mb': 1024, 'extra_specs': case['specs']}
        request = {'flavor': flavor, 'image': {'properties': case['image']}}
        documents.checked_request(request)
        document = inventory(
            **{
                f'h{at}': {
                    'numa_topology': {'cells': cells},
                    'pci_device_pools': case['pools'][at],
                }
                for at, cells in enumerate(case['hosts'])
            }
        )
        near, anywhere = (
            passing(
                host_filter,
                document,
                request,
                cpu_allocation_ratio=4.0,
                ram_allocation_ratio=4.0,
                pci_aliases=tuple(case['aliases']),
            )
            for host_filter in (NUMATopologyFilter(), PciPassthroughFilter())
        )
        passed = [host for host in near if host in anywhere]
        assert passed == [f'h{at}' for at, fits in enumerate(expected) if fits]


def device_cases() -> list[dict[str, Any]]:
    """Return pools of devices, and requests for some."""
    rng = random.Random(36)
    tags = [{}, {'physical_network': 'a'}, {'physical_network': 'b'}]
    cases = []
    for _ in range(200):
        pools = [
            {
                'vendor_id': '8086',
                'product_id': rng.choice(['1520', '1572']),
                'numa_node': 0,
                'count': rng.randint(1, 2),
                'tags': {'dev_type': 'type-VF', **rng.choice(tags)},
            }
            for _ in range(rng.randint(1, 4))
        ]
        requests = [
            {
                'count': rng.randint(1, 3),
                'spec': [
                    {
                        'vendor_id': '8086',
                        **rng.choice([{}, {'product_id': '1520'}]),
                        **rng.choice(tags),
                    }
                ],
            }
            for _ in range(rng.randint(1, 3))
        ]
        cases.append({'pools': pools, 'requests': requests})
    return cases


def test_devices_of_pools_are_given_as_nova_gives_them(judged):
    assert {expected for _, expected in judged['devices']} == {True, False}
    for case, expected in judged['devices']:
        asked = [
            {'count': one['count'], 'alternatives': one['spec']}
            for one in case['requests']
        ]
        found = passing(
            PciPassthroughFilter(),
            inventory(a={'pci_device_pools': case['pools']}),
            {'pci_requests': asked},
        )
        assert (found == ['a']) is expected, case


MOST = 12


def counting_cases() -> list[dict[str, Any]]:
    """Return hosts, and a request of which several may fit."""
    rng = random.Random(20)
    cases = []
    for number in range(150):
        count = rng.choice([1, 2, 3])
        # Nova keeps the page size of the first cell that it tries, and counts
        # no instances on hosts without pages.
        asked = guest(rng, ())
        cells = [cell(rng, number) for number in range(count)]
        pages = [{'size_kb': 4, 'total': 2**19, 'used': 0, 'reserved': 0}]
        for made in cells:
            made['mempages'] = made['mempages'] or pages
        cases.append(
            {
                'cells': cells,
                'guest': asked if number % 5 else None,
                'cpu_ratio': 2.0,
                'ram_ratio': 1.5,
                'pools': some_pools(rng, count),
                'requests': some_requests(rng, rng.choice([0, 0, 1, 2]))
                if number % 5
                else some_requests(rng, 1),
                'most': MOST,
            }
        )
    return cases


def test_as_many_instances_of_a_request_fit_a_host_as_nova_says(judged):
    assert sum((count or 0) > 1 for _, count in judged['several']) > 15
    chain = HostPipeline(
        [NUMATopologyFilter(), PciPassthroughFilter()],
        [],
        Settings(cpu_allocation_ratio=2.0, ram_allocation_ratio=1.5),
    )
    for case, count in judged['several']:
        if count is None:
            continue
        hosts = inventory(
            a={
                'numa_topology': {'cells': case['cells']},
                'pci_device_pools': case['pools'],
                'vcpus': 1,
            }
        )
        topology = case['guest'] and json.loads(
            compute_request.msgspec.json.encode(stated(case['guest']))
        )

        def fits(instances: int, hosts=hosts, case=case, topology=topology):
            made = documents.request(
                {
                    'num_instances': instances,
                    'numa_topology': topology,
                    'pci_requests': with_alternatives(case['requests']),
                }
            ).with_ids()
            stored = table(hosts)
            form = made.offered_form(stored.resources)
            try:
                chain.select(Overlay(stored), form, random.Random(1))
            except errors.NoValidHost:
                return False
            return True

        ours = sum(fits(instances) for instances in range(1, MOST + 1))
        assert ours == count, case
