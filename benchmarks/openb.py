"""Requests and hosts of the openb trace of a GPU cluster.

A node is a host: its vCPUs, its memory, 1,000 CUSTOM_GPU_MILLI for each GPU
and the trait ``CUSTOM_GPU_<model>``. A pod is a request for one instance;
traits of the models that it does not accept are forbidden.
"""

from __future__ import annotations

import csv
import pathlib
from typing import Any

from benchmarks import common
from benchmarks.mixes import MixedRequest

FOLDER = common.ROOT.parent / 'shared' / 'traces' / 'openb'
RESOURCE = 'CUSTOM_GPU_MILLI'


class TraceMissing(Exception):
    """The folder does not hold the trace."""


def inventory(hosts: int, folder: pathlib.Path = FOLDER) -> dict[str, Any]:
    """Return the trace's nodes, repeated up to so many, as an inventory.

    :raises TraceMissing: the folder does not hold the trace
    """
    nodes = _rows(folder, 'nodes.csv')
    made = []
    for number in range(hosts):
        node = nodes[number % len(nodes)]
        host: dict[str, Any] = {
            'host': common.host_name(number),
            'vcpus': int(node['cpu_milli']) // 1000,
            'memory_mb': int(node['memory_mib']),
            'local_gb': 2000,
            'cpu_allocation_ratio': 1.0,
            'ram_allocation_ratio': 1.0,
            'hypervisor_type': 'QEMU',
            'hypervisor_version': 8002000,
            'supported_instances': [['x86_64', 'kvm', 'hvm']],
        }
        if int(node['gpu']):
            host['resources'] = {RESOURCE: {'total': int(node['gpu']) * 1000}}
            host['traits'] = [_trait(node['model'])]
        made.append(host)
    return {
        'pools': [{'id': common.POOL, 'name': 'default'}],
        'hosts': made,
    }


def requests(folder: pathlib.Path = FOLDER) -> list[MixedRequest]:
    """Return the trace's pods in the order of their creation as requests.

    Any of them may be refused: the trace nearly fills its cluster, and a
    pod that asks for a whole node may find all of them in use.

    :raises TraceMissing: the folder does not hold the trace
    """
    models = {node['model'] for node in _rows(folder, 'nodes.csv')} - {''}
    pods = _rows(folder, 'pods.csv')
    pods.sort(key=lambda pod: int(pod['creation_time']))
    return [MixedRequest(_request(pod, models), 'either') for pod in pods]


def _request(pod: dict[str, str], models: set[str]) -> dict[str, Any]:
    milli = int(pod['num_gpu']) * int(pod['gpu_milli'])
    extra_specs = {f'resources:{RESOURCE}': str(milli)} if milli else {}
    accepted = set(pod['gpu_spec'].split('|')) - {''}
    for model in sorted(models - accepted if accepted else ()):
        extra_specs[f'trait:{_trait(model)}'] = 'forbidden'
    return {
        'project_id': pod['qos'],
        'flavor': {
            'vcpus': -(-int(pod['cpu_milli']) // 1000),
            'memory_mb': int(pod['memory_mib']),
            'extra_specs': extra_specs,
        },
    }


def _trait(model: str) -> str:
    return f'CUSTOM_GPU_{model.upper()}'


def _rows(folder: pathlib.Path, name: str) -> list[dict[str, str]]:
    path = folder / name
    if not path.is_file():
        raise TraceMissing(
            f'There is no {name} in {folder}: name the folder of the openb '
            'trace with --traces'
        )
    with path.open(newline='') as lines:
        return list(csv.DictReader(lines))
