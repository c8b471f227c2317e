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
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from tests.support import servers, wheels
from tests.support.paths import PROGRAMS
from tests.support.waiting import LIMIT_S

ROOT = pathlib.Path(__file__).parents[1]
AGGREGATES = 20
POOL = '794ccc2c-d751-44fe-b57f-8894c9f5c842'


def inventory(hosts: int, seed: int = 1) -> dict[str, Any]:
    """Return an inventory document of a plain cloud, a third full."""
    rng = random.Random(seed)
    names = [host_name(number) for number in range(hosts)]
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


def host_name(number: int) -> str:
    """Return the name of a host of the inventory by its number."""
    return f'node-{number:06d}'


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
    with servers.postgresql() as (_, server_url):
        yield create_database(server_url)


def create_database(server_url: str, template: str | None = None) -> str:
    """Create a database on a PostgreSQL server and return its URL.

    :param server_url: URL of the server, up to the name of the database
    :param template: URL of a database to copy; nobody may be connected to it
    """
    name = f'bench_{uuid.uuid4().hex[:12]}'
    copied = template.rsplit('/', 1)[1] if template else 'template1'
    engine = sa.create_engine(
        server_url + 'postgres', isolation_level='AUTOCOMMIT'
    )
    with engine.connect() as conn:
        conn.exec_driver_sql(f'CREATE DATABASE {name} TEMPLATE {copied}')
    engine.dispose()
    return server_url + name


@contextlib.contextmanager
def bus(url: str | None) -> Iterator[str]:
    """Yield *url*, or that of a private RabbitMQ."""
    if url:
        yield url
        return
    with servers.rabbitmq() as (_, transport_url):
        yield transport_url


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


@contextlib.contextmanager
def installed(revision: str | None) -> Iterator[pathlib.Path]:
    """Yield the programs of a commit, in an environment of its own.

    None is for those of this tree.
    """
    if revision is None:
        yield PROGRAMS
        return
    with tempfile.TemporaryDirectory() as folder:
        yield wheels.install_commit(revision, pathlib.Path(folder))


def environment() -> dict[str, str]:
    """Return environment variables with which Python imports no other tree."""
    return {**os.environ, 'PYTHONPATH': ''}


def manage(
    config: pathlib.Path, *args: str, programs: pathlib.Path = PROGRAMS
) -> subprocess.CompletedProcess[str]:
    """Run scheduler-manage to its end.

    :param programs: folder of the program
    """
    done = subprocess.run(
        [programs / 'scheduler-manage', '--config-file', config, *args],
        check=False, capture_output=True, text=True, env=environment(),
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f'{" ".join(args)}: {done.stderr[-3000:]}')
    return done


def import_inventory(
    config: pathlib.Path,
    document: dict[str, Any],
    programs: pathlib.Path = PROGRAMS,
) -> None:
    """Create the tables of an empty database and import an inventory."""
    path = config.with_name('inventory.json')
    path.write_text(json.dumps(document))
    manage(config, 'db', 'sync', programs=programs)
    manage(config, 'inventory', 'import', str(path), programs=programs)


def process(
    module: str, *args: str, ready: str
) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    """Run a Python module of this tree until the block ends."""
    return _running([sys.executable, '-m', module, *args], ready)


def daemon(
    config: pathlib.Path, programs: pathlib.Path = PROGRAMS
) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    """Run a daemon until the block ends, once it is ready.

    :param programs: folder of the program
    """
    command = [programs / 'scheduler-service', '--config-file', config]
    return _running(command, 'Ready:')


@contextlib.contextmanager
def _running(
    command: Sequence[str | pathlib.Path], ready: str
) -> Iterator[subprocess.Popen[str]]:
    """Run a command until the block ends; wait for a line first."""
    with tempfile.TemporaryFile('w+') as log:
        running = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=environment(),
        )
        lines = []
        try:
            assert running.stdout is not None
            for line in running.stdout:
                lines.append(line)
                if ready in line:
                    break
            else:
                raise RuntimeError(''.join(lines)[-3000:])
            drain = subprocess.Popen(['cat'], stdin=running.stdout, stdout=log)
            yield running
        finally:
            running.terminate()
            try:
                running.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                running.kill()
            with contextlib.suppress(NameError, UnboundLocalError):
                drain.wait(5)


def memory_mb(pid: int, peak: bool = False) -> float:
    """Return the resident memory of a process, or the most that it had."""
    field = 'VmHWM:' if peak else 'VmRSS:'
    for line in pathlib.Path(f'/proc/{pid}/status').read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise LookupError(pid)


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used, all its threads."""
    text = pathlib.Path(f'/proc/{pid}/stat').read_text()
    # After the name in parentheses: user and system time are 12th and 13th.
    fields = text.rpartition(')')[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


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
