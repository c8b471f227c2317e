"""How long commands take that print many hosts.

``python -m benchmarks.lists --hosts 50000`` on a private PostgreSQL and on
SQLite: wall time and processor time of each command as a process, its start
included.
"""

from __future__ import annotations

import argparse
import pathlib
import resource
import tempfile
import time
from typing import Any

from benchmarks import common
from tests.support import servers

COMMANDS = {
    'a table of all': ('host', 'list'),
    'the 20 that are used least': (
        'host', 'list', '--sort', 'used', '--limit', '20',
    ),
    'those of one zone by name': (
        'host', 'list', '--zone', 'zone-1', '--name', '*7', '-f', 'value',
    ),
    'all as JSON': ('host', 'list', '-f', 'json'),
}  # fmt: skip


def with_zones(document: dict[str, Any], zones: int = 3) -> dict[str, Any]:
    """Return an inventory with an aggregate for each of several zones."""
    names = [host['host'] for host in document['hosts']]
    aggregates = [
        {
            'id': 1000 + number,
            'name': f'zone-{number}',
            'hosts': names[number::zones],
            'metadata': {'availability_zone': f'zone-{number}'},
        }
        for number in range(zones)
    ]
    return {**document, 'aggregates': aggregates}


def measure(config: pathlib.Path, command: tuple[str, ...]) -> dict[str, Any]:
    """Return the figures of one command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    printed = common.manage(config, *command).stdout
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return {
        'wall_s': round(wall, 2),
        'cpu_s': round(cpu, 2),
        'lines': printed.count('\n'),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--hosts', type=int, default=50_000)
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    document = with_zones(common.inventory(args.hosts))
    with (
        servers.postgresql(durable=False) as (_, url),
        tempfile.TemporaryDirectory() as name,
    ):
        databases = {
            'postgresql': common.create_database(url),
            'sqlite': f'sqlite:///{name}/lists.sqlite',
        }
        figures = {
            f'{kind}, {what}': found
            for kind, database in databases.items()
            for what, found in figures_of(
                pathlib.Path(name) / kind, database, document
            ).items()
        }
    common.show(figures, args.json)


def figures_of(
    folder: pathlib.Path, database: str, document: dict[str, Any]
) -> dict[str, Any]:
    """Return the figures of each command on one database.

    :param folder: for the configuration; it is made
    """
    folder.mkdir()
    config = common.write_config(
        folder, database, 'inproc://lists/', topic='lists'
    )
    common.import_inventory(config, document)
    figures = {
        what: measure(config, command) for what, command in COMMANDS.items()
    }
    expected = len(document['hosts']) + 2
    assert figures['a table of all']['lines'] == expected
    return figures


if __name__ == '__main__':
    main()
