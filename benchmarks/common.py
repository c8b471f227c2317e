"""Inventories, servers and processes that several benchmarks start."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from tests import servers

AGGREGATES = 20
POOL = '794ccc2c-d751-44fe-b57f-8894c9f5c842'


def inventory(hosts: int, seed: int = 1) -> dict[str, Any]:
    """Return an inventory document of a plain cloud, a third full."""
    rng = random.Random(seed)
    names = [f'node-{number:06d}' for number in range(hosts)]
    documents = []
    for number, name in enumerate(names):
        vcpus = rng.choice((32, 64, 96))
        memory = rng.choice((131072, 262144, 524288))
        documents.append(
            {
                'host': name,
                'vcpus': vcpus,
                'vcpus_used': rng.randrange(vcpus),
                'memory_mb': memory,
                'memory_mb_used': rng.randrange(memory // 3),
                'local_gb': 2000,
                'local_gb_used': rng.randrange(700),
                'hypervisor_type': 'QEMU',
                'hypervisor_version': 8002000,
                'host_ip': f'10.{number >> 16 & 255}.{number >> 8 & 255}.'
                f'{number & 255}',
                'supported_instances': [['x86_64', 'kvm', 'hvm']],
                'cpu_info': {'vendor': 'x', 'features': ['aes', 'avx2']},
                'traits': rng.sample(
                    ['HW_CPU_X86_AVX2', 'HW_CPU_X86_AVX512F', 'CUSTOM_SSD'], 2
                ),
            }
        )
    aggregates = [
        {
            'id': number + 1,
            'hosts': names[number::AGGREGATES],
            'metadata': {
                'availability_zone': f'az{number % 3}',
                'ssd': 'true' if number % 2 else 'false',
            },
        }
        for number in range(AGGREGATES)
    ]
    return {
        'pools': [{'id': POOL, 'name': 'default'}],
        'hosts': documents,
        'aggregates': aggregates,
    }


def request(**how: Any) -> dict[str, Any]:
    """Return a small request."""
    flavor = {'vcpus': 2, 'memory_mb': 2048, 'root_gb': 20}
    return {'project_id': 'p', 'flavor': flavor, **how}


@contextlib.contextmanager
def database(url: str | None) -> Iterator[str]:
    """Yield *url*, or that of an empty database on a private PostgreSQL."""
    if url:
        yield url
        return
    with servers.postgresql() as (_, base):
        engine = sa.create_engine(
            base + 'postgres', isolation_level='AUTOCOMMIT'
        )
        with engine.connect() as conn:
            conn.exec_driver_sql('CREATE DATABASE bench')
        engine.dispose()
        yield base + 'bench'


@contextlib.contextmanager
def bus(url: str | None) -> Iterator[str]:
    """Yield *url*, or that of a private RabbitMQ."""
    if url:
        yield url
        return
    with servers.rabbitmq() as (_, found):
        yield found


def write_config(
    folder: pathlib.Path, database_url: str, transport_url: str, **more: Any
) -> pathlib.Path:
    """Write a configuration file; *more* are options of [scheduler]."""
    lines = [
        '[DEFAULT]',
        f'transport_url = {transport_url}',
        '[database]',
        f'connection = {database_url}',
        '[scheduler]',
        *(f'{name} = {value}' for name, value in more.items()),
    ]
    path = folder / 'scheduler_service.conf'
    path.write_text('\n'.join(lines) + '\n')
    return path


def manage(config: pathlib.Path, *args: str) -> subprocess.CompletedProcess:
    """Run scheduler-manage to its end."""
    return subprocess.run(
        [sys.executable, '-m', 'scheduler_service.cmd.manage',
         '--config-file', str(config), *args],
        check=True, capture_output=True, text=True,
    )  # fmt: skip


@contextlib.contextmanager
def process(*args: str, ready: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Python module until the block ends; wait for a line first."""
    with tempfile.TemporaryFile('w+') as log:
        running = subprocess.Popen(
            [sys.executable, '-m', *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        seen = []
        try:
            assert running.stdout is not None
            for line in running.stdout:
                seen.append(line)
                if ready in line:
                    break
            else:
                raise RuntimeError(''.join(seen)[-3000:])
            drain = subprocess.Popen(['cat'], stdin=running.stdout, stdout=log)
            yield running
        finally:
            running.terminate()
            try:
                running.wait(30)
            except subprocess.TimeoutExpired:
                running.kill()
            with contextlib.suppress(NameError, UnboundLocalError):
                drain.wait(5)


@contextlib.contextmanager
def daemon(config: pathlib.Path) -> Iterator[subprocess.Popen[str]]:
    """Run a daemon until the block ends, once it is ready."""
    with process(
        'scheduler_service.cmd.service',
        '--config-file',
        str(config),
        ready='Ready:',
    ) as running:
        yield running


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    for line in pathlib.Path(f'/proc/{pid}/status').read_text().splitlines():
        if line.startswith('VmRSS:'):
            return int(line.split()[1]) / 1024
    raise LookupError(pid)


def timed(call: Any) -> float:
    """Return how long a call took, in seconds."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def show(figures: dict[str, Any], as_json: bool) -> None:
    """Print figures, as JSON or one on a line."""
    if as_json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        print(f'{name:40} {value}')


def cpus() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0))
