"""This daemon and nova-scheduler on the same databases and placement.

``python -m benchmarks.nova --hosts 1000 10000`` fills a compute service's
databases and a placement service of two workers with hosts, and has nova's
own client ask each scheduler in turns for hosts for small servers: one caller
at a time, then 16 at once, which take little of the machine's time
(``benchmarks/nova_caller.py`` says how). Beside them stands a bare client,
which makes the claims alone: 16 in each message, with one message at a time,
which has as many claims under way as there are callers, and with one for each
worker, which has twice as many. ``--without-nova`` leaves nova-scheduler out.

``candidates`` has our daemon's figures with servers that have a virtual GPU,
for which placement is asked for candidates: the calls of one caller as a ratio
to what placement itself takes for the same, three queries and a claim, and,
with one such call for nine others, the rate of the others as a ratio to their
rate without such calls. Where placement is busy all the time, these calls take
its time from the others; the bare client, with as many, says how much.

Before the measurement each host casts ``sync_instance_info``, as computes do
every two minutes: without it nova-scheduler reads the servers of each host
from the databases for each request.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import common, nova_fleet
from tests.support import interop, servers
from tests.support.databases import migrated_database
from tests.support.nova_databases import NovaDatabases
from tests.support.placement_service import (
    placement_service,
)
from tests.support.waiting import LIMIT_S, wait_until

WORKERS = 2
CALLERS = 16
# What placement takes in one message of ours.
AT_ONCE = 16
# So many calls there are for a call that needs candidates.
_SHARE = 9
# How many messages of the bare client are under way at a time.
_BARE = {'one_message_at_a_time': 1, 'one_for_each_worker': WORKERS}
# Processor seconds of a turn below which the scheduler did nothing in it, and
# how many such turns in succession make it idle.
_IDLE_S, _IDLE_TURNS = 0.1, 3
_CALLER = common.ROOT / 'benchmarks' / 'nova_caller.py'
_TAKEN = {'VCPU': 1, 'MEMORY_MB': 512, 'DISK_GB': 1}
# Nobody reports that the hosts are alive while they are measured.
_NEVER_DOWN = 1_000_000


class Cloud:
    """The servers of one size of fleet, and where configuration files lie.

    :ivar providers: uuids of the hosts
    """

    def __init__(
        self, hosts: int, seconds: float, stack: contextlib.ExitStack
    ) -> None:
        self.seconds = seconds
        _, base = stack.enter_context(servers.mariadb(durable=False))
        _, self.bus = stack.enter_context(servers.rabbitmq())
        self.placement = stack.enter_context(placement_service(base, WORKERS))
        self.databases = NovaDatabases(base)
        stack.callback(self.databases.close)
        self.store = migrated_database(base)
        self.folder = pathlib.Path(
            stack.enter_context(tempfile.TemporaryDirectory())
        )
        self.providers = nova_fleet.fill(self.databases, self.placement, hosts)
        self.bin = interop.openstack() / 'bin'
        self.nova_conf = self.folder / 'nova.conf'
        self.nova_conf.write_text(self._nova_options())

    def _nova_options(self) -> str:
        return (
            f'[DEFAULT]\nhost = control\nstate_path = {self.folder}\n'
            f'transport_url = {self.bus}\nuse_stderr = true\n'
            f'service_down_time = {_NEVER_DOWN}\n'
            'rpc_response_timeout = 600\nlong_rpc_timeout = 600\n'
            f'[api_database]\nconnection = {self.databases.api}\n'
            f'[database]\nconnection = {self.databases.cells[0]}\n'
            f'[oslo_concurrency]\nlock_path = {self.folder}\n'
            '[oslo_messaging_notifications]\ndriver = noop\n'
            '[workarounds]\ndisable_compute_service_check_for_ffu = true\n'
            f'[scheduler]\nworkers = 1\n{self.placement.options}'
        )

    @contextlib.contextmanager
    def daemon(self) -> Iterator[tuple[int, float]]:
        """Run our daemon; yield its process and how long it took to start."""
        port = servers.free_port()
        config = common.write_config(self.folder, self.store, self.bus)
        with config.open('a') as more:
            more.write(
                f'[http]\nbind_port = {port}\n[compute]\nenabled = true\n'
                f'api_database = {self.databases.api}\nuse_placement = true\n'
                f'service_down_time = {_NEVER_DOWN}\n'
                f'{self.placement.options}'
            )
        self.metrics_url = f'http://127.0.0.1:{port}/metrics'
        start = time.monotonic()
        with common.daemon(config) as process:
            yield process.pid, time.monotonic() - start

    @contextlib.contextmanager
    def nova_scheduler(self) -> Iterator[tuple[int, float]]:
        """Run nova-scheduler, likewise."""
        log = self.folder / 'nova-scheduler.log'
        start = time.monotonic()
        with log.open('w') as out:
            process = subprocess.Popen(
                [self.bin / 'nova-scheduler', '--config-file', self.nova_conf],
                stdout=out, stderr=out, env=_environment(),
            )  # fmt: skip
        try:
            wait_until(lambda: 'Starting scheduler node' in log.read_text())
            taken = time.monotonic() - start
            yield process.pid, taken
        finally:
            process.terminate()
            try:
                process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def cast_servers(self, pid: int) -> None:
        """Cast which servers each host has; wait until that is done.

        :param pid: of the scheduler, which reads faster than it works
        """
        self._run_caller(1, 0, 0, *nova_fleet.names(len(self.providers)))
        idle = 0
        while idle < _IDLE_TURNS:
            before = _cpu_seconds(pid)
            time.sleep(1)
            is_idle = _cpu_seconds(pid) - before < _IDLE_S
            idle = idle + 1 if is_idle else 0

    def _run_caller(
        self, callers: int, seconds: float, share: int, *hosts: str
    ) -> str:
        done = subprocess.run(
            [self.bin / 'python', '-P', '-W', 'ignore', _CALLER,
             self.nova_conf, str(callers), str(seconds), str(share), *hosts],
            capture_output=True, text=True, env=_environment(),
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(done.stderr[-3000:])
        return done.stdout

    def call(
        self, callers: int, seconds: float, share: int = 0
    ) -> dict[str, Any]:
        """Have nova's client call the scheduler that runs."""
        text = self._run_caller(callers, seconds, share)
        found: dict[str, Any] = json.loads(text.splitlines()[-1])
        if found['refused']:
            raise RuntimeError(f'refused: {found["refused"][:3]}')
        return found


def _environment() -> dict[str, str]:
    return {
        'PATH': os.environ['PATH'],
        **interop.NOVA_ENVIRONMENT,
    }


def _with_workers(pid: int) -> list[int]:
    """Return a process and those that descend from it."""
    pids = [pid]
    for path in pathlib.Path(f'/proc/{pid}/task').glob('*/children'):
        for child in path.read_text().split():
            pids += _with_workers(int(child))
    return pids


def _cpu_seconds(pid: int) -> float:
    return sum(common.cpu_seconds(worker) for worker in _with_workers(pid))


def bare(cloud: Cloud, at_once: int, calls: int, share: int = 0) -> float:
    """Return the claims a second of a client that only makes claims.

    :param at_once: consumers in one message
    :param calls: messages that are under way at a time
    :param share: claims for each of a candidate, which are not counted; 0:
        there are none
    """
    until = time.monotonic() + cloud.seconds

    def work(number: int) -> int:
        # Of their own, so that they lose no claim to each other.
        providers = cloud.providers[number::calls]
        made = 0
        while time.monotonic() < until:
            body = {
                str(uuid.uuid4()): _allocations(
                    providers[(made + at) % len(providers)]
                )
                for at in range(at_once)
            }
            cloud.placement.call('POST', '/allocations', body)
            for at in range(made, made + at_once):
                if share and at % share == 0:
                    _claim_candidate(cloud, at * calls + number)
            made += at_once
        return made

    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(calls) as pool:
        made = sum(pool.map(work, range(calls)))
    return made / (time.monotonic() - start)


def _allocations(
    provider: str, amounts: Mapping[str, int] = _TAKEN
) -> dict[str, Any]:
    return {
        'allocations': {provider: {'resources': amounts}},
        'project_id': 'p',
        'user_id': 'u',
        'consumer_generation': None,
    }


def measure(cloud: Cloud, pid: int, start_s: float) -> dict[str, Any]:
    """Return the figures of the scheduler that runs.

    :param pid: of its process; that of its workers counts as well
    :param start_s: how long it took to start
    """
    first_s = cloud.call(1, 0)['first_s']
    cloud.cast_servers(pid)
    before = _cpu_seconds(pid)
    alone = cloud.call(1, cloud.seconds)
    together = cloud.call(CALLERS, cloud.seconds)
    calls = len(alone['times_s']) + len(together['times_s']) + 2
    return {
        'start_to_first_answer_s': round(start_s + first_s, 2),
        'one_caller_p50_ms': _median_ms(alone['times_s']),
        'callers_p50_ms': _median_ms(together['times_s']),
        'callers_decisions_a_second': round(
            len(together['times_s']) / together['seconds'], 1
        ),
        'cpu_ms_a_decision': round(
            (_cpu_seconds(pid) - before) / calls * 1000, 2
        ),
        'memory_mb': round(
            max(common.memory_mb(worker) for worker in _with_workers(pid)), 1
        ),
    }


def measure_candidates(cloud: Cloud) -> dict[str, float]:
    """Return the figures of requests that need candidates; see above."""
    alone = _median_ms(cloud.call(1, cloud.seconds, 1)['gpu_times_s'])
    own = _median_ms(_placement_times(cloud))
    rates = [
        len(found['times_s']) / found['seconds']
        for share in (0, _SHARE, 0, _SHARE)
        for found in [cloud.call(CALLERS, cloud.seconds, share)]
    ]
    return {
        'one_caller_p50_ms': alone,
        'placement_p50_ms': own,
        'one_caller_to_placement': round(alone / own, 2),
        'others_to_without': round(
            (rates[1] + rates[3]) / (rates[0] + rates[2]), 2
        ),
        'others_to_without_bare': round(
            bare(cloud, AT_ONCE, WORKERS, _SHARE)
            / bare(cloud, AT_ONCE, WORKERS),
            2,
        ),
    }


def _placement_times(cloud: Cloud) -> list[float]:
    """Return how long placement takes for candidates and claims alone."""
    times: list[float] = []
    until = time.monotonic() + cloud.seconds
    while time.monotonic() < until:
        start = time.monotonic()
        _claim_candidate(cloud, 3 * len(times))
        times.append(time.monotonic() - start)
    return times


def _claim_candidate(cloud: Cloud, number: int) -> None:
    """Query three hosts, from that of a number on, and claim on the first."""
    amounts = {**_TAKEN, 'VGPU': 1}
    resources = ','.join(f'{name}:{n}' for name, n in sorted(amounts.items()))
    first = number % (len(cloud.providers) - 2)
    for provider in cloud.providers[first : first + 3]:
        cloud.placement.call(
            'GET',
            f'/allocation_candidates?limit=50&resources={resources}'
            f'&in_tree={provider}',
        )
    body = {str(uuid.uuid4()): _allocations(cloud.providers[first], amounts)}
    cloud.placement.call('POST', '/allocations', body)


def _median_ms(times_s: Sequence[float]) -> float:
    return round(statistics.median(times_s) * 1000, 1)


def lost(cloud: Cloud) -> dict[str, float]:
    """Return how many claims our daemon made, and lost to others."""
    with urllib.request.urlopen(cloud.metrics_url, timeout=LIMIT_S) as answer:
        text = answer.read().decode()
    counters = re.findall(r'^\w*(placement_claims(?:_lost)?)_total (\S+)',
                       text, re.MULTILINE)  # fmt: skip
    counts = dict.fromkeys(('placement_claims', 'placement_claims_lost'), 0.0)
    return {**counts, **{name: float(value) for name, value in counters}}


def figures_of(
    hosts: int, seconds: float, turns: int, with_nova: bool
) -> dict[str, Any]:
    """Return the figures at one size of the fleet."""
    with contextlib.ExitStack() as stack:
        cloud = Cloud(hosts, seconds, stack)
        rows: dict[str, list[Any]] = {'daemon': [], 'nova_scheduler': []}
        rates: dict[str, list[float]] = {name: [] for name in _BARE}
        candidates = []
        for _ in range(turns):
            with cloud.daemon() as (pid, start_s):
                measured = measure(cloud, pid, start_s)
                candidates.append(measure_candidates(cloud))
                rows['daemon'].append({**measured, **lost(cloud)})
            for name, calls in _BARE.items():
                claimed = bare(cloud, AT_ONCE, calls)
                rates[name].append(round(claimed, 1))
            if with_nova:
                with cloud.nova_scheduler() as (pid, start_s):
                    rows['nova_scheduler'].append(measure(cloud, pid, start_s))
        return {
            **rows,
            'candidates': candidates,
            'bare_client_claims_a_second': rates,
        }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--hosts', type=int, nargs='+', default=[1000, 10000])
    parser.add_argument('--seconds', type=float, default=20)
    parser.add_argument('--turns', type=int, default=2)
    parser.add_argument('--without-nova', action='store_true')
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    figures = {
        f'{hosts}_hosts': figures_of(
            hosts, args.seconds, args.turns, not args.without_nova
        )
        for hosts in args.hosts
    }
    common.show(figures, args.json)


if __name__ == '__main__':
    main()
