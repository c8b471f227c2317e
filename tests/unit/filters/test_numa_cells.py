"""What is free of a host cell, where its cores are partly in use."""

from __future__ import annotations

import pytest

from scheduler_service.filters.hosts.numa_topology_filter import (
    NUMATopologyFilter,
)
from tests.support.plugins import inventory, passing

PAIRS = [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ('policy', 'vcpus', 'fields', 'passes'),
    [
        # Each dedicated CPU takes a core of which no thread is in use.
        ('isolate', 1, {'siblings': PAIRS, 'pinned_cpus': [0]}, True),
        ('isolate', 2, {'siblings': PAIRS, 'pinned_cpus': [0]}, False),
        ('isolate', 1, {'siblings': PAIRS, 'pinned_cpus': [0, 2]}, False),
        ('isolate', 2, {'siblings': PAIRS, 'pinned_cpus': []}, True),
        ('isolate', 3, {'siblings': PAIRS, 'pinned_cpus': []}, False),
        # Without cores every free CPU stands for itself.
        ('isolate', 3, {'pinned_cpus': [0]}, True),
        # Threads that instances may not use do not keep a core from them.
        ('isolate', 1, {'siblings': [[0, 8], [1, 9]], 'pcpuset': [0]}, True),
        # A core without a usable thread is none.
        ('isolate', 2, {'siblings': [[0], [8]], 'pcpuset': [0, 1]}, False),
        # Both threads of a core have to be free.
        ('require', 2, {'siblings': PAIRS, 'pinned_cpus': [0]}, True),
        ('require', 2, {'siblings': PAIRS, 'pinned_cpus': [0, 2]}, False),
        ('require', 4, {'siblings': PAIRS, 'pinned_cpus': []}, True),
        ('require', 2, {'siblings': [[0, 1], [2]], 'pcpuset': [1, 2]}, False),
        ('require', 2, {'siblings': [[0], [1], [2, 3]]}, True),
        ('require', 3, {'siblings': [[0], [1], [2, 3]]}, False),
    ],
)
def test_dedicated_cpus_fit_when_enough_threads_of_cores_are_free(
    policy, vcpus, fields, passes
):
    cell = {'cpuset': [0, 1, 2, 3], 'memory': 1024, **fields}
    request = {
        'flavor': {
            'vcpus': vcpus,
            'memory_mb': 512,
            'extra_specs': {
                'hw:cpu_policy': 'dedicated',
                'hw:cpu_thread_policy': policy,
            },
        }
    }
    document = inventory(a={'numa_topology': {'cells': [cell]}})
    hosts = passing(NUMATopologyFilter(), document, request)
    assert hosts == (['a'] if passes else [])


@pytest.mark.parametrize(
    ('used', 'asked', 'passes'),
    [
        (None, '2048', True),
        (0, '2048', True),
        (128, '2048', True),
        (129, '2048', False),
        (256, '2048', False),
        (129, 'large', False),
        (128, 'large', True),
        (256, 'any', True),
        (256, 'small', True),
    ],
)
def test_pages_hold_the_memory_when_enough_are_not_used(used, asked, passes):
    """256 MB are 128 pages of 2 MiB."""
    large = {'size_kb': 2048, 'total': 256}
    if used is not None:
        large['used'] = used
    small = {'size_kb': 4, 'total': 65536, 'used': 0}
    cell = {'cpuset': [0, 1], 'memory': 1024, 'mempages': [small, large]}
    request = {
        'flavor': {
            'vcpus': 1,
            'memory_mb': 256,
            'extra_specs': {'hw:mem_page_size': asked},
        }
    }
    document = inventory(a={'numa_topology': {'cells': [cell]}})
    hosts = passing(NUMATopologyFilter(), document, request)
    assert hosts == (['a'] if passes else [])


def test_pages_of_one_kilobyte_are_pages():
    cell = {
        'cpuset': [0],
        'memory': 64,
        'mempages': [{'size_kb': 1, 'total': 65536}],
    }
    request = {
        'flavor': {
            'vcpus': 1,
            'memory_mb': 64,
            'extra_specs': {'hw:mem_page_size': '1'},
        }
    }
    document = inventory(a={'numa_topology': {'cells': [cell]}})
    assert passing(NUMATopologyFilter(), document, request) == ['a']
