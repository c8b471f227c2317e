"""The NUMA cells of an instance follow from its flavor and image."""

from __future__ import annotations

import pytest

from scheduler_service import errors
from scheduler_service.model import documents
from scheduler_service.model.requirements.numa import GuestCell


def request(specs=None, properties=None, vcpus=4, memory_mb=1024, check=True):
    """Return a request with extra specs and image properties."""
    parse = documents.checked_request if check else documents.request
    return parse(
        {
            'flavor': {
                'vcpus': vcpus,
                'memory_mb': memory_mb,
                'extra_specs': specs or {},
            },
            'image': {'properties': properties or {}},
        }
    )


def cells(specs, properties=None):
    """Return the cells of an instance with 4 vCPUs and 1024 MB."""
    guest = request(specs, properties).guest
    return None if guest is None else list(guest.cells)


DEDICATED = {'hw:cpu_policy': 'dedicated'}
MIXED = {'hw:cpu_policy': 'mixed'}


@pytest.mark.parametrize(
    ('specs', 'properties', 'expected'),
    [
        ({}, {}, None),
        ({'hw:cpu_policy': 'shared'}, {}, None),
        ({'hw:numa_nodes': '2'}, {}, [GuestCell(2, 0, 512)] * 2),
        ({}, {'hw_numa_nodes': 2}, [GuestCell(2, 0, 512)] * 2),
        ({'hw:pmem': 'a'}, {}, [GuestCell(4, 0, 1024)]),
        (DEDICATED, {}, [GuestCell(0, 4, 1024)]),
        ({}, {'hw_cpu_policy': 'dedicated'}, [GuestCell(0, 4, 1024)]),
        ({'resources:PCPU': '4'}, {}, [GuestCell(0, 4, 1024)]),
        (
            {**MIXED, 'hw:cpu_dedicated_mask': '^0-1', 'hw:numa_nodes': '2'},
            {},
            [GuestCell(2, 0, 512), GuestCell(0, 2, 512)],
        ),
        (
            {**MIXED, 'hw:cpu_realtime': 'yes', 'hw:cpu_realtime_mask': '3'},
            {},
            [GuestCell(3, 1, 1024)],
        ),
        (
            {**DEDICATED, 'trait:HW_CPU_HYPERTHREADING': 'forbidden'},
            {},
            [GuestCell(0, 4, 1024, 'isolate')],
        ),
        (
            {**DEDICATED, 'hw:cpu_thread_policy': 'prefer'},
            {'hw_cpu_thread_policy': 'require'},
            [GuestCell(0, 4, 1024, 'prefer')],
        ),
        (
            {
                'hw:numa_nodes': '2',
                'hw:numa_cpus.0': '0-2,^1',
                'hw:numa_mem.0': '24',
                'hw:numa_cpus.1': '1,3',
                'hw:numa_mem.1': '1000',
            },
            {},
            [GuestCell(2, 0, 24), GuestCell(2, 0, 1000)],
        ),
        (
            {'hw:mem_page_size': 'any'},
            {'hw_mem_page_size': '2MB'},
            [GuestCell(4, 0, 1024, '', '2048')],
        ),
    ],
)
def test_cells_follow_from_flavor_and_image(specs, properties, expected):
    assert cells(specs, properties) == expected


@pytest.mark.parametrize(
    ('text', 'kib'),
    [('4', '4'), ('2MB', '2048'), ('1GiB', '1048576'), ('2048KB', '2048'),
     ('0.5MB', '512'), ('16Mb', '2048'), ('large', 'large')],
)  # fmt: skip
def test_page_sizes_are_counted_in_kib(text, kib):
    (cell,) = cells({'hw:mem_page_size': text})
    assert cell.page_size == kib


@pytest.mark.parametrize(
    ('specs', 'properties', 'at'),
    [
        ({'hw:cpu_policy': 'pinned'}, {}, 'hw:cpu_policy'),
        (
            {'hw:cpu_policy': 'shared'},
            {'hw_cpu_policy': 'dedicated'},
            'hw_cpu_policy',
        ),
        (MIXED, {'hw_cpu_policy': 'dedicated'}, 'hw_cpu_policy'),
        (MIXED, {}, 'hw:cpu_policy'),
        (
            {**MIXED, 'hw:cpu_dedicated_mask': '0-3'},
            {},
            'hw:cpu_dedicated_mask',
        ),
        (
            {**MIXED, 'hw:cpu_dedicated_mask': '9'},
            {},
            'hw:cpu_dedicated_mask',
        ),
        (
            {**DEDICATED, 'hw:cpu_dedicated_mask': '1'},
            {},
            'hw:cpu_dedicated_mask',
        ),
        (
            {**DEDICATED, 'hw:cpu_realtime': 'true'},
            {},
            'hw:cpu_realtime_mask',
        ),
        ({'hw:cpu_thread_policy': 'isolate'}, {}, 'hw:cpu_thread_policy'),
        (
            {**DEDICATED, 'hw:cpu_thread_policy': 'isolate'},
            {'hw_cpu_thread_policy': 'require'},
            'hw_cpu_thread_policy',
        ),
        ({**DEDICATED, 'resources:PCPU': '4'}, {}, 'hw:cpu_policy'),
        ({'resources:PCPU': '3'}, {}, 'resources:PCPU'),
        (
            {'hw:emulator_threads_policy': 'isolate'},
            {},
            'hw:emulator_threads_policy',
        ),
        ({}, {'hw_mem_page_size': 'large'}, 'hw_mem_page_size'),
        (
            {'hw:mem_page_size': 'small'},
            {'hw_mem_page_size': 'large'},
            'hw_mem_page_size',
        ),
        ({'hw:mem_page_size': '2M'}, {}, 'hw:mem_page_size'),
        ({'hw:locked_memory': 'true'}, {}, 'hw:locked_memory'),
        ({'hw:numa_nodes': '1'}, {'hw_numa_nodes': '1'}, 'hw_numa_nodes'),
        ({'hw:numa_nodes': '3'}, {}, 'hw:numa_nodes'),
        (
            {
                'hw:numa_nodes': '1',
                'hw:numa_cpus.0': '0-2',
                'hw:numa_mem.0': '1024',
            },
            {},
            'hw:numa_nodes',
        ),
        ({'hw:numa_nodes': '1', 'hw:numa_cpus.0': '0-3'}, {}, 'hw:numa_nodes'),
        (
            {'hw:numa_nodes': '1', 'hw:numa_cpus.0': '3-0'},
            {'hw_numa_mem.0': 1024},
            'hw:numa_nodes',
        ),
    ],
)
def test_what_compute_services_refuse_is_refused_by_name(
    specs, properties, at
):
    with pytest.raises(errors.InvalidRequest) as caught:
        request(specs, properties)
    assert caught.value.facts['at'].rpartition('.')[2] == at or (
        caught.value.facts['at'].endswith(at)
    )


def test_a_flavor_of_too_many_cpus_has_no_cells():
    with pytest.raises(errors.InvalidRequest, match='at most 4096'):
        request({'hw:numa_nodes': '1'}, vcpus=2**50)
