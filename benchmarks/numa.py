"""The longest stretch for which one request keeps the engine's thread.

``python -m benchmarks.numa`` makes a table of 10,000 hosts with distinct NUMA
topologies, and requests of 1,000 instances with NUMA settings of all shapes.
Hosts are selected for each request in turns, as the engine does it while
other callers wait, first with nothing known of the topologies. A stretch is
the time between two moments at which others have their turn. No server is
needed. Stretches are given in milliseconds of processor time, and of time on
the clock, which depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import Any

from benchmarks import common, passes
from scheduler_service import errors, time_slice
from scheduler_service.cmd.process import tune_gc
from scheduler_service.columns import Overlay
from scheduler_service.engine import selecting
from scheduler_service.filters import numa
from scheduler_service.model import Request, documents
from scheduler_service.pipeline import Assignment, HostPipeline

Stretches = list[tuple[float, float]]
_PAGES = (4, 2048, 1048576)
_POLICIES = ('', 'prefer', 'require', 'isolate')


def topology(rng: random.Random) -> dict[str, Any]:
    """Return a host's cells, of 1 to 8 and now and then of 16."""
    count = rng.choice((1, 2, 2, 2, 4, 4, 8, 8, 16))
    return {'cells': [_cell(rng, number) for number in range(count)]}


def _cell(rng: random.Random, number: int) -> dict[str, Any]:
    size = rng.choice((8, 12, 16))
    cpus = list(range(number * size, (number + 1) * size))
    memory = rng.randrange(16384, 65536)
    return {
        'id': number,
        'cpuset': cpus,
        'pcpuset': cpus[rng.randrange(4) :],
        'pinned_cpus': rng.sample(cpus, rng.randrange(size // 2)),
        'siblings': [cpus[at : at + 2] for at in range(0, size, 2)],
        'cpu_usage': rng.randrange(size),
        'memory': memory,
        'memory_usage': rng.randrange(memory // 2),
        'mempages': [
            {
                'size_kb': kb,
                'total': memory * 1024 // kb // 3,
                'used': rng.randrange(1 + memory * 1024 // kb // 9),
            }
            for kb in _PAGES
        ],
    }


def inventory(hosts: int, seed: int) -> dict[str, Any]:
    """Return an inventory whose hosts all have other topologies."""
    rng = random.Random(seed)
    document = common.inventory(hosts, seed)
    for host in document['hosts']:
        host['numa_topology'] = topology(rng)
    return document


def request(rng: random.Random, instances: int) -> dict[str, Any]:
    """Return a request with random NUMA settings."""
    cells = rng.choice((1, 1, 2, 2, 3, 4, 8, 9, 16, 128))
    specs = {'hw:numa_nodes': str(cells)}
    memory, vcpus = cells * 2 ** rng.randrange(12), cells * rng.choice((1, 2))
    if rng.random() < 0.5:
        sizes = [2 * rng.randrange(1, 200) for _ in range(cells)]
        memory = sum(sizes)
        for number, size in enumerate(sizes):
            last = rng.randrange(1 + vcpus // cells)
            specs[f'hw:numa_cpus.{number}'] = f'0-{last}'
            specs[f'hw:numa_mem.{number}'] = str(size)
    more = {
        'hw:cpu_policy': rng.choice(('', 'shared', 'dedicated', 'mixed')),
        'hw:cpu_thread_policy': rng.choice(_POLICIES),
        'hw:mem_page_size': rng.choice(('', 'small', 'large', 'any', '2MB')),
        'hw:emulator_threads_policy': rng.choice(('', 'isolate')),
    }
    specs.update((key, value) for key, value in more.items() if value)
    flavor = {'vcpus': vcpus, 'memory_mb': memory, 'extra_specs': specs}
    return common.request(flavor=flavor, num_instances=instances)


def stretches(
    pipeline: HostPipeline, table: Any, instance_request: Request
) -> tuple[Stretches, str]:
    """Select for one request; return its stretches in s, and the outcome."""
    placed: dict[str, Assignment] = {}
    form = instance_request.offered_form(table.resources)
    times: Stretches = []
    outcome = ''
    while not outcome:
        cpu, clock = time.thread_time(), time.perf_counter()
        overlay = Overlay(table)
        time_slice.begin(selecting.TURN_S, lambda: True)
        try:
            pipeline.select(overlay, form, random.Random(1), placed=placed)
            outcome = 'placed'
        except time_slice.TimeSliceOver:
            pass
        except errors.SchedulerError as error:
            outcome = error.name
        finally:
            time_slice.end()
        overlay.forget()
        times.append((time.thread_time() - cpu, time.perf_counter() - clock))
    return times, outcome


def measure(hosts: int, requests: int, instances: int, seed: int) -> Any:
    """Return the figures of one run."""
    rng = random.Random(seed)
    table = passes.make_table(documents.inventory(inventory(hosts, seed)))
    pipeline = passes.make_pipeline(
        filters=[
            'AvailabilityZoneFilter',
            'ComputeFilter',
            'NUMATopologyFilter',
        ]
    )
    numa.columns_of.cache_clear()
    # As the daemon does it: a collection would be the longest stretch.
    tune_gc()
    every: Stretches = []
    outcomes: dict[str, int] = {}
    firsts: Stretches = []
    for _ in range(requests):
        instance_request = documents.request(
            request(rng, instances)
        ).with_ids()
        times, outcome = stretches(pipeline, table, instance_request)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        firsts = firsts or times
        every += times
    cpu, clock = ([duration[at] * 1000 for duration in every] for at in (0, 1))
    return {
        'hosts': hosts,
        'topologies': len(table.coded['numa_topology'].values),
        'requests': requests,
        'instances_a_request': instances,
        'outcomes': outcomes,
        'stretches': len(every),
        'stretches_of_first_request': len(firsts),
        'worst_stretch_ms': round(max(cpu), 1),
        'worst_stretch_on_the_clock_ms': round(max(clock), 1),
        'p99_stretch_ms': round(statistics.quantiles(cpu, n=100)[98], 1),
        'p99_stretch_on_the_clock_ms': round(
            statistics.quantiles(clock, n=100)[98], 1
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--hosts', type=int, default=10_000)
    parser.add_argument('--requests', type=int, default=100)
    parser.add_argument('--instances', type=int, default=1000)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    figures = measure(args.hosts, args.requests, args.instances, args.seed)
    common.show(figures, args.json)


if __name__ == '__main__':
    main()
