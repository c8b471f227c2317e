"""One filter-and-weigh pass at several sizes, beside what NumPy needs.

``python -m benchmarks.passes`` times what a request costs in the pipeline:
warm, with the masks of its topology remembered, and cold, without. Beside
it stand the floor of ``benchmarks.floor`` (plain NumPy over columns of the
same hosts) and a pass over objects, which does the capacity checks alone,
one host at a time. At one size each built-in filter is compared with a
single comparison over a column.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from benchmarks import common, filter_times
from benchmarks.floor import Floor
from scheduler_service import conf as options
from scheduler_service import plugins
from scheduler_service.cmd import adapters
from scheduler_service.columns import build_table
from scheduler_service.filters.hosts import all_filters
from scheduler_service.model import Host, Inventory, documents
from scheduler_service.pipeline import HostPipeline

_ORIGINALS = 10_000


def make_pipeline(every: bool) -> HostPipeline:
    """Return the pipeline of the default options, or of every filter."""
    conf = adapters.new_config()
    options.parse(conf, [], default_config_files=[], default_config_dirs=[])
    group = conf.filter_scheduler
    enabled = group.enabled_filters
    if every:
        enabled = [kind.name for kind in all_filters()]
    return HostPipeline(
        plugins.host_filters(group.available_filters, enabled),
        plugins.host_weighers(group.weight_classes),
        options.settings(conf),
    )


def filter_hosts_inexactly(
    pipeline: HostPipeline, table: Any, request: Any
) -> Any:
    """Return who passes all filters but the exact ones, all of them run.

    Hardly any host has exactly what a request needs, so a chain with the
    exact filters would stop there and not time the filters after them.
    """
    passed = np.ones(len(table), np.bool_)
    for result in pipeline.filter_results(table, request):
        if not result.filter.name.startswith('Exact'):
            passed &= result.mask
    return passed


def inventory(hosts: int) -> Inventory:
    """Return *hosts* hosts; above 10,000 they repeat under other names."""
    document = common.inventory(min(hosts, _ORIGINALS))
    parsed = documents.inventory(document)
    if hosts <= _ORIGINALS:
        return parsed
    copies = hosts // _ORIGINALS
    every: list[Host] = []
    for copy in range(copies):
        for number, host in enumerate(parsed.hosts):
            name = common.host_name(copy * _ORIGINALS + number)
            every.append(
                msgspec.structs.replace(
                    host, host=name, hypervisor_hostname=name
                )
            )
    step = common.AGGREGATES
    return msgspec.structs.replace(
        parsed,
        hosts=every,
        aggregates=[
            msgspec.structs.replace(
                aggregate, hosts=[host.host for host in every[at::step]]
            )
            for at, aggregate in enumerate(parsed.aggregates)
        ],
    )


def rich_request(plain: dict[str, Any]) -> dict[str, Any]:
    """Return a request that gives every filter something to look at."""
    specs = {
        'aggregate_instance_extra_specs:ssd': 'true',
        'capabilities:hypervisor_type': 's== QEMU',
        'capabilities:cpu_info:features': '<in> aes',
        'capabilities:hypervisor_version': '>= 6000000',
    }
    return {
        **plain,
        'flavor': {**plain['flavor'], 'name': 'm1', 'extra_specs': specs},
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


def median_s(call: Callable[[], Any], turns: int) -> float:
    """Return the median time of a call."""
    return statistics.median(common.timed(call) for _ in range(turns))


def measure(hosts: int, every: bool, turns: int) -> dict[str, Any]:
    """Return the figures at one size."""
    parsed = inventory(hosts)
    table = build_table(list(enumerate(parsed.hosts)), parsed.aggregates)
    pipeline = make_pipeline(every)
    plain = common.request(availability_zone='az1')
    request = documents.request(
        rich_request(plain) if every else plain
    ).with_ids()
    narrow = filter_hosts_inexactly if every else HostPipeline.filter_hosts
    floor = Floor(parsed, 'az1', plain['flavor'])
    passed = 0

    def run_pass() -> None:
        nonlocal passed
        mask = narrow(pipeline, table, request)
        ranking = pipeline.weigh_hosts(table, mask, request)
        passed = ranking.count
        ranking.best(3)

    def cold() -> None:
        # What was worked out for a kind of request, not of hosts.
        table.topology.clear_arrays()
        run_pass()

    def objects() -> None:
        passing = [
            host
            for host in parsed.hosts
            if host.memory_mb * 1.5 - host.memory_mb_used >= 2048
            and host.vcpus * 16.0 - host.vcpus_used >= 2
            and host.local_gb - host.local_gb_used >= 20
        ]
        passing.sort(key=lambda host: host.memory_mb_used - host.memory_mb)

    run_pass()
    floor.run()
    assert 0 < passed < hosts, passed
    assert every or floor.passed == passed, (floor.passed, passed)
    few = max(5, turns // 10)
    # The pass and its floor alternate: the machine's other work hits both.
    pairs = [
        (common.timed(run_pass), common.timed(floor.run)) for _ in range(turns)
    ]
    warm = statistics.median(own for own, _ in pairs)
    bottom = statistics.median(bare for _, bare in pairs)
    slow = median_s(objects, 3 if hosts > 100_000 else few)
    return {
        'warm_ms': round(warm * 1000, 3),
        'cold_ms': round(median_s(cold, few) * 1000, 3),
        'objects_ms': round(slow * 1000, 3),
        'floor_ms': round(bottom * 1000, 3),
        'warm_to_floor': round(warm / bottom, 2),
        'objects_to_warm': round(slow / warm, 1),
        'passed': passed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--hosts', type=int, nargs='+',
        default=[1000, 10_000, 100_000, 1_000_000],
    )  # fmt: skip
    parser.add_argument(
        '--every', action='store_true', help='every built-in filter'
    )
    parser.add_argument(
        '--filters-at',
        type=int,
        default=100_000,
        help='number of hosts to compare each filter at; 0: do not',
    )
    parser.add_argument('--turns', type=int, default=300)
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    figures: dict[str, Any] = {
        str(hosts): measure(
            hosts, args.every, max(20, min(args.turns, 30_000_000 // hosts))
        )
        for hosts in args.hosts
    }
    if args.filters_at:
        figures['filters_to_one_comparison'] = filter_times.measure(
            args.filters_at, max(20, args.turns // 5)
        )
    common.show(figures, args.json)


if __name__ == '__main__':
    main()
