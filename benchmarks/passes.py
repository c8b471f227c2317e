"""One filter-and-weigh pass at several sizes, beside a pass over objects.

``python -m benchmarks.passes`` times what a request costs in the pipeline:
warm, with the shape of the request remembered, and cold, without. The pass
over objects does the capacity checks alone, one host at a time.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import numpy as np

from benchmarks import common
from scheduler_service import conf as options
from scheduler_service import plugins
from scheduler_service.columns import build_table
from scheduler_service.model import documents
from scheduler_service.pipeline import HostPipeline
from scheduler_service.pipeline.weigh import rank


def pipeline(every: bool) -> HostPipeline:
    """Return the pipeline of the default options, or of every built-in."""
    conf = options.new_config()
    options.parse(conf, [], default_config_files=[], default_config_dirs=[])
    group = conf.filter_scheduler
    enabled = group.enabled_filters
    if every:
        from scheduler_service.filters.hosts import all_filters

        enabled = [kind.name for kind in all_filters()]
    return HostPipeline(
        plugins.host_filters(group.available_filters, enabled),
        plugins.host_weighers(group.weight_classes),
        options.settings(conf),
    )


def wishes(asked: dict[str, Any]) -> dict[str, Any]:
    """Return a request that gives every filter something to look at."""
    specs = {
        'aggregate_instance_extra_specs:ssd': 'true',
        'capabilities:hypervisor_type': 's== QEMU',
        'capabilities:cpu_info:features': '<in> aes',
        'capabilities:hypervisor_version': '>= 6000000',
    }
    return {
        **asked,
        'flavor': {**asked['flavor'], 'name': 'm1', 'extra_specs': specs},
        'image': {
            'id': 'x',
            'properties': {'hw_architecture': 'x86_64', 'img_hv_type': 'kvm'},
        },
        'scheduler_hints': {
            'query': '["and", [">=", "$free_ram_mb", 1024], '
            '["<", "$vcpus_used", 90]]',
            'different_host': ['11111111-0000-4000-8000-000000000001'],
            'build_near_host_ip': '10.0.0.1',
            'cidr': '/8',
        },
    }


def forget_shapes(table: Any, chain: HostPipeline) -> None:
    """Forget what was worked out for a shape of request, not of hosts."""
    names = {'mask', *(one.name for one in chain.filters)}
    names |= {'aggregates', 'traits'}
    memo = table.topology.memo
    for key in [k for k in memo if isinstance(k, tuple) and k[0] in names]:
        del memo[key]


def judged(chain: HostPipeline, table: Any, request: Any) -> Any:
    """Return who passes all filters but the exact ones, all of them run.

    Hosts with exactly what is asked are not to be had in numbers; a chain
    that stops at them would say nothing of what follows.
    """
    passed = np.ones(len(table), np.bool_)
    for one, mask in chain.verdicts(table, request):
        if not one.name.startswith('Exact'):
            passed &= mask
    return passed


def measure(hosts: int, every: bool, turns: int) -> dict[str, Any]:
    """Return the figures at one size."""
    document = documents.inventory(common.inventory(hosts))
    table = build_table(list(enumerate(document.hosts)), document.aggregates)
    chain = pipeline(every)
    asked = common.request(availability_zone='az1')
    if every:
        asked = wishes(asked)
    request = documents.request(asked).with_ids()
    left = 0

    def run() -> None:
        nonlocal left
        mask = (
            judged(chain, table, request)
            if every
            else (chain.narrow(table, request))
        )
        ranking = rank(table, mask, request, chain.weighers, chain.settings)
        left = len(ranking.rows)
        ranking.best(3)

    def cold() -> None:
        forget_shapes(table, chain)
        run()

    def objects() -> None:
        found = [
            host
            for host in document.hosts
            if host.memory_mb * 1.5 - host.memory_mb_used >= 2048
            and host.vcpus * 16.0 - host.vcpus_used >= 2
            and host.local_gb - host.local_gb_used >= 20
        ]
        found.sort(key=lambda host: host.memory_mb_used - host.memory_mb)

    run()
    assert 0 < left < hosts, left
    figures = {
        name: statistics.median(common.timed(call) for _ in range(count))
        for name, call, count in (
            ('warm', run, turns),
            ('cold', cold, max(5, turns // 10)),
            ('objects', objects, max(5, turns // 10)),
        )
    }
    return {
        f'{name}_ms': round(value * 1000, 3) for name, value in figures.items()
    } | {
        'objects_to_warm': round(figures['objects'] / figures['warm'], 1),
        'left': left,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--hosts', type=int, nargs='+', default=[1000, 10_000, 100_000]
    )
    parser.add_argument(
        '--every', action='store_true', help='every built-in filter'
    )
    parser.add_argument('--turns', type=int, default=300)
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    figures = {
        str(hosts): measure(hosts, args.every, args.turns)
        for hosts in args.hosts
    }
    common.show(figures, args.json)


if __name__ == '__main__':
    main()
