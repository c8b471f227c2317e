"""How many hosts the pods of a trace need, by sets of weighers.

``python -m benchmarks.packing --trace FOLDER`` reads ``nodes.csv`` and
``pods.csv`` of the openb trace: one production cluster, published with
hkust-adsl/kubernetes-scheduler-simulator. Pods arrive one after the other in
a random order and stay; each seed is another order. Without a folder nothing
is measured.

``mixed``
    Pods as virtual machines with vCPUs and memory alone, on the hosts of the
    trace: how many of them are used in the end.
``equal``
    The same on as many hosts of the largest kind.
``devices``
    With devices as a pooled class, in thousandths of one. Pods are repeated
    at random until 130 % of all devices are asked for; the figure is how many
    percent of the devices are allocated when 100 % have been asked for.

Beside each set stands a bound: the least number of hosts, largest first,
whose vCPUs and memory suffice in sum. ``--pods even`` or ``odd`` takes every
second pod: what was fitted on the even ones is shown on the odd ones.
"""

from __future__ import annotations

import argparse
import bisect
import csv
import itertools
import multiprocessing
import os
import pathlib
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks import common
from scheduler_service import conf as options
from scheduler_service import errors, plugins
from scheduler_service.cmd import adapters
from scheduler_service.columns import HostTable, Overlay
from scheduler_service.model import Request, documents
from scheduler_service.pipeline import HostPipeline
from scheduler_service.settings import Settings
from scheduler_service.testing import table as build_table
from scheduler_service.weighers import Weigher

CASES = ('mixed', 'equal', 'devices')
PACKING = common.ROOT / 'etc' / 'scheduler_service' / 'packing.conf'
_GROUP = 'filter_scheduler'
_NEGATIVE = {
    f'{name}_weight_multiplier': -1.0 for name in ('ram', 'cpu', 'disk')
}
_INFLATED = 1.3
_HALVES = {'even': slice(0, None, 2), 'odd': slice(1, None, 2)}


class BestFit(Weigher):
    """Prefers the host with the least left, as shares of its capacity."""

    def weigh(
        self,
        table: HostTable,
        rows: Any,
        request: Request,
        settings: Settings,
    ) -> Any:
        left = np.zeros(len(table))
        for name, amount in request.resources.items():
            if amount:
                limit = table.capacity(name, settings)
                rest = limit - table.resources[name].used - amount
                left += rest / np.maximum(limit, 1.0)
        return -left[rows]


class Size(NamedTuple):
    """What a host has, or a pod asks for.

    :ivar cores: in thousandths
    :ivar devices: likewise
    """

    cores: int
    memory_mb: int
    devices: int


# Name of a set -> values of options, and weighers in place of those enabled.
SETS: dict[str, tuple[dict[str, Any], list[Weigher] | None]] = {
    'defaults': ({}, None),
    'negative multipliers': (_NEGATIVE, None),
    'first fit': ({}, []),
    'best fit': ({}, [BestFit()]),
    'packing.conf': ({}, None),
}


def read(folder: pathlib.Path) -> tuple[list[Size], list[Size]]:
    """Return the hosts and the pods of a trace."""
    with (folder / 'nodes.csv').open() as lines:
        hosts = [
            Size(
                int(row['cpu_milli']),
                int(row['memory_mib']),
                1000 * int(row['gpu']),
            )
            for row in csv.DictReader(lines)
        ]
    with (folder / 'pods.csv').open() as lines:
        pods = [
            Size(
                int(row['cpu_milli']),
                int(row['memory_mib']),
                int(row['num_gpu']) * int(row['gpu_milli']),
            )
            for row in csv.DictReader(lines)
        ]
    return hosts, pods


def make_pipeline(name: str) -> HostPipeline:
    """Return the pipeline of a set."""
    values, weighers = SETS[name]
    files = [str(PACKING)] if name == PACKING.name else []
    conf = adapters.new_config()
    options.parse(conf, [], default_config_files=files, default_config_dirs=[])
    for option, value in values.items():
        conf.set_override(option, value, _GROUP)
    group = conf[_GROUP]
    return HostPipeline(
        plugins.host_filters(group.available_filters, group.enabled_filters),
        plugins.host_weighers(group.weight_classes)
        if weighers is None
        else weighers,
        options.settings(conf),
    )


def arrivals(
    pods: Sequence[Size], devices: int, rng: random.Random
) -> list[Size]:
    """Return the pods that arrive until all devices have been asked for."""
    repeated, asked = list(pods), sum(pod.devices for pod in pods)
    while asked < _INFLATED * devices:
        repeated.append(rng.choice(pods))
        asked += repeated[-1].devices
    rng.shuffle(repeated)
    sums = list(itertools.accumulate(pod.devices for pod in repeated))
    return repeated[: bisect.bisect_left(sums, devices) + 1]


def place(
    pipeline: HostPipeline,
    hosts: Sequence[Size],
    pods: Sequence[Size],
    rng: random.Random,
) -> tuple[HostTable, int]:
    """Place pods one after the other.

    A claim is of whole vCPUs: each is a thousandth of a core here.

    :return: the hosts with them, and how many pods were refused
    """
    table = build_table(
        {
            'hosts': [
                {
                    'host': f'node-{number:04}',
                    'vcpus': host.cores // 1000,
                    'cpu_allocation_ratio': 1000.0,
                    'memory_mb': host.memory_mb,
                    'ram_allocation_ratio': 1.0,
                    'resources': {'VGPU': {'total': host.devices}},
                }
                for number, host in enumerate(hosts)
            ]
        }
    )
    overlay, refused = Overlay(table), 0
    for pod in pods:
        specs = {'resources:VGPU': str(pod.devices)} if pod.devices else {}
        flavor = {
            'vcpus': pod.cores,
            'memory_mb': pod.memory_mb,
            'extra_specs': specs,
        }
        request = documents.request({'flavor': flavor}).with_ids()
        try:
            pipeline.select(overlay, request, rng)
        except errors.NoValidHost:
            refused += 1
    return table, refused


class Run(NamedTuple):
    """One set of weighers in one case, with one order of arrival."""

    case: str
    name: str
    seed: int
    hosts: Sequence[Size]
    pods: Sequence[Size]


def measure(run: Run) -> tuple[float, int]:
    """Return the figure of a case, and how many pods were refused."""
    pipeline, rng = make_pipeline(run.name), random.Random(run.seed)
    if run.case == 'devices':
        devices = sum(host.devices for host in run.hosts)
        pods = arrivals(run.pods, devices, rng)
        table, refused = place(pipeline, run.hosts, pods, rng)
        used = float(table.resources['VGPU'].used.sum())
        return 100 * used / devices, refused
    hosts, pods = without_devices(run.case, run.hosts, run.pods)
    arriving = rng.sample(pods, len(pods))
    table, refused = place(pipeline, hosts, arriving, rng)
    return float(np.count_nonzero(table.number('num_instances'))), refused


def without_devices(
    case: str, hosts: Sequence[Size], pods: Sequence[Size]
) -> tuple[list[Size], list[Size]]:
    """Return the hosts and the pods of a case that has no devices."""
    if case == 'equal':
        hosts = [max(hosts)] * len(hosts)
    return (
        [host._replace(devices=0) for host in hosts],
        [pod._replace(devices=0) for pod in pods],
    )


def bound(hosts: Sequence[Size], pods: Sequence[Size]) -> int:
    """Return the least number of hosts with what pods ask for in sum."""
    least = 0
    for at in (0, 1):
        asked = sum(pod[at] for pod in pods)
        largest = sorted((host[at] for host in hosts), reverse=True)
        sums = list(itertools.accumulate(largest))
        least = max(least, bisect.bisect_left(sums, asked) + 1)
    return least


def figures(
    hosts: Sequence[Size],
    pods: Sequence[Size],
    seeds: int,
    map_runs: Callable[..., Iterable[tuple[float, int]]] = map,
) -> dict[str, dict[str, Any]]:
    """Return by case and set the mean, its deviation and the refusals.

    :param map_runs: as ``map``, perhaps in several processes
    """
    runs = [
        Run(case, name, seed, hosts, pods)
        for case in CASES
        for name in SETS
        for seed in range(seeds)
    ]
    found: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for run, result in zip(runs, map_runs(measure, runs), strict=True):
        found.setdefault((run.case, run.name), []).append(result)
    told: dict[str, dict[str, Any]] = {case: {} for case in CASES}
    for (case, name), some in found.items():
        values, refused = zip(*some, strict=True)
        told[case][name] = {
            'mean': round(statistics.mean(values), 2),
            'deviation': round(statistics.pstdev(values), 2),
            'refused': round(statistics.mean(refused), 1),
        }
    for case in ('mixed', 'equal'):
        told[case]['bound'] = bound(*without_devices(case, hosts, pods))
    return told


_TITLES = {
    'mixed': 'Hosts in use, of many kinds',
    'equal': 'Hosts in use, of equal ones',
    'devices': 'Percent of the devices allocated',
}
_WIDTH, _LEFT, _ROW = 720, 170, 22


def picture(told: dict[str, dict[str, Any]]) -> str:
    """Return the figures as bars, in SVG."""
    parts, y = [], 10
    for case, rows in told.items():
        most = max(row['mean'] for name, row in rows.items() if name in SETS)
        scale = (_WIDTH - _LEFT - 80) / most
        parts.append(
            f'<text x="10" y="{y + 15}" class="t">{_TITLES[case]}</text>'
        )
        y += 26
        top = y
        for name in SETS:
            value = rows[name]['mean']
            end = _LEFT + value * scale
            kind = ' class="own"' if name == PACKING.name else ''
            parts.append(
                f'<text x="{_LEFT - 8}" y="{y + 14}" class="n">{name}</text>'
                f'<rect x="{_LEFT}" y="{y + 2}" width="{end - _LEFT:.0f}" '
                f'height="{_ROW - 6}"{kind}/>'
                f'<text x="{end + 6:.0f}" y="{y + 14}">{value:,.1f}</text>'
            )
            y += _ROW
        if 'bound' in rows:
            x = _LEFT + rows['bound'] * scale
            parts.append(
                f'<path d="M{x:.0f} {top - 2}V{y}"/>'
                f'<text x="{x - 4:.0f}" y="{top - 5}" class="n">'
                f'bound {rows["bound"]:,}</text>'
            )
        y += 14
    style = (
        'text{font:12px sans-serif;fill:#222}.t{font-weight:bold}'
        '.n{text-anchor:end}rect{fill:#9db4c8}.own{fill:#2f6f4f}'
        'path{stroke:#b02020;stroke-dasharray:4 3}'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" '
        f'height="{y}"><style>{style}</style>'
        f'<rect width="100%" height="100%" style="fill:#fff"/>'
        + '\n'.join(parts)
        + '</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--trace', type=pathlib.Path, default=os.environ.get('OPENB_TRACE'),
        help='folder of the trace; default: $OPENB_TRACE',
    )  # fmt: skip
    parser.add_argument('--pods', choices=('all', *_HALVES), default='all')
    parser.add_argument('--seeds', type=int, default=5)
    parser.add_argument('--picture', type=pathlib.Path, help='an SVG file')
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    if args.trace is None or not pathlib.Path(args.trace).is_dir():
        print(f'Skipped: there is no trace in {args.trace or "--trace"}')
        return
    hosts, pods = read(pathlib.Path(args.trace))
    pods = pods[_HALVES.get(args.pods, slice(None))]
    with multiprocessing.get_context('spawn').Pool() as pool:
        told = figures(hosts, pods, args.seeds, pool.imap)
    if args.picture:
        args.picture.write_text(picture(told))
    if args.json:
        common.show(told, True)
        return
    for case, rows in told.items():
        common.show(
            {f'{case}, {name}': row for name, row in rows.items()}, False
        )


if __name__ == '__main__':
    main()
