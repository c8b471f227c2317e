"""Each built-in host filter beside one comparison over a column.

``python -m benchmarks.filter_times`` prints how many times as long as one
comparison of a float64 column a filter takes, ``warm`` as the pipeline runs
it (a mask whose key came before is kept) and ``anew``, when the mask has to
be made. The inventory has an instance on every host, and the requests give
every filter something to look at; a filter with several ways to its mask
appears once for each.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import statistics
from typing import Any

import numpy as np

from benchmarks import common
from scheduler_service.columns import HostTable
from scheduler_service.columns.topology import EACH_TIME
from scheduler_service.filters.base import HostFilter
from scheduler_service.filters.hosts import BUILT_IN
from scheduler_service.model import Request, documents
from scheduler_service.settings import Settings
from scheduler_service.testing import table as build_table

_GROUPS = {
    policy: f'22222222-0000-4000-8000-00000000000{number}'
    for number, policy in enumerate(('affinity', 'anti-affinity'))
}
_QUERIES = {
    'of numbers': ['and', ['>=', '$free_ram_mb', 1024],
                   ['<', '$vcpus_used', 90]],
    'of texts': ['and', ['=', '$hypervisor_type', 'QEMU'],
                 ['=', '$stats.rack', 'r1']],
    'of both': ['or', ['=', '$hypervisor_type', 'KVM'],
                ['<', '$num_io_ops', 3]],
}  # fmt: skip
_CAPABILITIES = {
    'what hosts are': {
        'capabilities:hypervisor_type': 's== QEMU',
        'capabilities:cpu_info:features': '<in> aes',
        'capabilities:hypervisor_version': '>= 6000000',
    },
    'load': {'capabilities:free_ram_mb': '>= 1024'},
    'load as text': {'capabilities:num_io_ops': '<or> 1 <or> 2'},
}


def uuid(number: int) -> str:
    """Return the uuid of an instance by its number."""
    return f'11111111-0000-4000-8000-{number:012}'


def inventory(hosts: int) -> dict[str, Any]:
    """Return an inventory with every attribute that a filter reads."""
    rng = random.Random(2)
    document = common.inventory(hosts)
    for host in document['hosts']:
        busy = rng.randrange(4)
        host.update(
            num_io_ops=rng.randrange(10),
            stats={'rack': f'r{rng.randrange(4)}'},
            metrics=[{'name': 'load', 'value': rng.randrange(100) / 100}],
            pci_device_pools=[
                {
                    'vendor_id': '8086',
                    'product_id': '1',
                    'count': rng.randrange(16),
                }
            ],
            numa_topology={
                'cells': [
                    {
                        'cpuset': list(range(16)),
                        'cpu_usage': busy * cell,
                        'memory': 65536,
                        'memory_usage': 8192 * busy,
                    }
                    for cell in (1, 2)
                ]
            },
        )
    for number, aggregate in enumerate(document['aggregates']):
        aggregate['metadata'].update(
            cpu_allocation_ratio=str(1 + number % 4),
            ram_allocation_ratio=str(1 + number % 2),
            disk_allocation_ratio=str(1 + number % 3),
            max_io_ops_per_host=str(number),
            max_instances_per_host=str(number),
            os_distro='ubuntu,fedora',
        )
        if number % 4 == 0:
            aggregate['metadata'].update(
                instance_type='m1,m2', filter_tenant_id='p,q'
            )
    document['instances'] = [
        {
            'uuid': uuid(number),
            'host': host['host'],
            'flavor': {'flavorid': str(rng.randrange(5))},
        }
        for number, host in enumerate(document['hosts'])
    ]
    document['server_groups'] = [
        {
            'uuid': group,
            'policy': policy,
            'members': [uuid(number) for number in range(10)],
        }
        for policy, group in _GROUPS.items()
    ]
    return document


def base_request() -> dict[str, Any]:
    """Return a request that gives nearly every filter something to do."""
    return common.request(
        availability_zone='az1',
        instance_group=_GROUPS['affinity'],
        retry={'hosts': [[common.host_name(1), common.host_name(1)]]},
        flavor={
            'name': 'm1',
            'flavorid': '1',
            'vcpus': 2,
            'memory_mb': 2048,
            'root_gb': 20,
            'extra_specs': {
                'aggregate_instance_extra_specs:ssd': 'true',
                'hw:numa_nodes': '2',
                'pci_passthrough:alias': 'nic:2',
            },
        },
        image={
            'id': 'isolated',
            'properties': {
                'hw_architecture': 'x86_64',
                'img_hv_type': 'kvm',
                'img_hv_requested_version': '>=6.0',
                'os_distro': 'ubuntu',
            },
        },
        scheduler_hints={
            'different_host': [uuid(1), uuid(2)],
            'same_host': [uuid(3), uuid(4)],
            'group': _GROUPS['affinity'],
            'build_near_host_ip': '10.0.0.1',
            'cidr': '/8',
        },
    )


def requests() -> dict[str, dict[str, Request]]:
    """Return requests by what is special about them, by filter name.

    Under '' are those for the filters that are not named.
    """
    plain = base_request()
    anti = {**plain, 'instance_group': _GROUPS['anti-affinity']}
    queries = {
        label: {**plain, 'scheduler_hints': {'query': json.dumps(query)}}
        for label, query in _QUERIES.items()
    }
    capabilities = {
        label: {**plain, 'flavor': {**plain['flavor'], 'extra_specs': specs}}
        for label, specs in _CAPABILITIES.items()
    }
    kinds = {
        '': {'': plain},
        'ServerGroupAntiAffinityFilter': {'': anti},
        'JsonFilter': queries,
        'ComputeCapabilitiesFilter': capabilities,
    }
    return {
        name: {
            label: documents.request(document).with_ids()
            for label, document in by_label.items()
        }
        for name, by_label in kinds.items()
    }


def run_warm(
    host_filter: HostFilter,
    table: HostTable,
    request: Request,
    settings: Settings,
) -> Any:
    """Return the mask as a pipeline gets it."""
    key = host_filter.mask_key(table, request, settings)
    if key is EACH_TIME:
        return host_filter.mask(table, request, settings)
    return table.topology.mask(
        (host_filter.name, key),
        lambda: host_filter.mask(table, request, settings),
    )


def measure(hosts: int, turns: int) -> dict[str, dict[str, float]]:
    """Return each filter's times by that of one comparison."""
    table = build_table(inventory(hosts))
    settings = Settings(
        isolated_hosts=tuple(common.host_name(n) for n in range(0, 1000, 10)),
        isolated_images=('isolated',),
        metrics_weight_setting=('load=1.0',),
        pci_aliases=('{"name": "nic", "vendor_id": "8086"}',),
    )
    column = np.random.default_rng(1).random(hosts)
    by_filter = requests()
    ratios = {}
    for kind in BUILT_IN:
        plugin = kind()
        for label, request in by_filter.get(
            plugin.name, by_filter['']
        ).items():
            arguments = (table, request, settings)
            if plugin.mask_key(*arguments) is None:
                continue
            calls = (
                functools.partial(run_warm, plugin, *arguments),
                functools.partial(plugin.mask, *arguments),
                functools.partial(np.greater_equal, column, 0.5),
            )
            calls[0]()
            # They alternate: the machine's other work hits all of them.
            times = [
                [common.timed(call) for call in calls] for _ in range(turns)
            ]
            warm, anew, unit = map(statistics.median, zip(*times, strict=True))
            ratios[f'{plugin.name}, {label}' if label else plugin.name] = {
                'warm': round(warm / unit, 1),
                'anew': round(anew / unit, 1),
            }
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--hosts', type=int, default=100_000)
    parser.add_argument('--turns', type=int, default=60)
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    common.show(measure(args.hosts, args.turns), args.json)


if __name__ == '__main__':
    main()
