"""How long commands take with many hosts and decisions.

``python -m benchmarks.lists --hosts 10000 --decisions 110000`` on a private
PostgreSQL and on SQLite: wall time and processor time of each command as a
process, its start included.
"""

from __future__ import annotations

import argparse
import pathlib
import resource
import tempfile
import time
import uuid
from typing import Any

from benchmarks import common
from scheduler_service.model import Placement, Selection
from scheduler_service.store.connection import Store
from scheduler_service.store.records import decisions
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
    'how full': ('capacity',),
    'what fits': ('capacity', '--flavor', 'vcpus=2,memory_mb=4096'),
    'old claims': ('claim', 'list', '--older-than', '1d'),
    'decisions': ('decision', 'list'),
    'refusals of an hour': (
        'decision', 'list', '--since', '1h', '--outcome', 'refused',
        '--limit', '0',
    ),
    'refusals by filter and project': (
        'decision', 'list', '--outcome', 'refused', '--limit', '0',
        '--by', 'filter,project_id',
    ),
    'decisions of a project': (
        'decision', 'list', '--project', 'project-7', '--limit', '0',
    ),
    'decisions on a host': (
        'decision', 'list', '--host', common.host_name(77), '--limit', '0',
    ),
    'decisions on an instance': ('decision', 'show', 'INSTANCE'),
    'a decision': ('decision', 'show', 'req-99'),
    'a plan': ('host', 'drain', 'HOST', '--plan'),
    'the books': ('audit',),
    'daemons': ('daemon', 'list'),
}  # fmt: skip
_FILTERS = 'AvailabilityZoneFilter', 'ComputeFilter', 'CoreFilter', 'RamFilter'
_PART = 1000
_PROJECTS = 50


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


def instance(number: int) -> str:
    """Return the uuid of the instance of a decision."""
    return str(uuid.UUID(int=number))


def decision(number: int, hosts: int) -> decisions.Decision:
    """Return a decision as daemons store them; one in ten is a refusal."""
    refused = not number % 10
    ends = [hosts // 3, hosts // 4, hosts // 9, 0 if refused else hosts // 99]
    funnel = [
        {'filter': name, 'start': start, 'end': end}
        for name, start, end in zip(
            _FILTERS, [hosts, *ends], ends, strict=False
        )
    ]
    facts = {'funnel': funnel, 'hosts': hosts, 'filters': [
        {'filter': name, 'out': 9, 'alone': 1, 'reason': 'x' * 80}
        for name in _FILTERS
    ]}  # fmt: skip
    name = common.host_name(number % hosts)
    why: dict[str, Any] = {'project_id': f'project-{number % _PROJECTS}'}
    if refused:
        why['instance_uuids'] = [instance(number)]
        why['error'] = {
            'name': 'NoValidHost', 'message': 'No valid host was found.',
            'code': 404, 'facts': facts,
        }  # fmt: skip
    else:
        selected = Selection(host=name, node=name, uuid='', zone='zone-1')
        why['placements'] = [
            Placement(
                instance_uuid=instance(number),
                selected=selected,
                alternates=[selected] * 3,
            )
        ]
        why['explanation'] = {**facts, 'passed': hosts // 99}
    outcome = 'NoValidHost' if refused else 'chosen'
    return decisions.Decision.of(
        f'req-{number}', 'select_destinations', outcome, why
    )


def store_decisions(database: str, count: int, hosts: int) -> None:
    """Store decisions, a thousand in a transaction."""
    store = Store.connect(database)
    for first in range(0, count, _PART):
        part = [
            decision(number, hosts)
            for number in range(first, min(first + _PART, count))
        ]
        store.write(lambda writer, part=part: decisions.record(writer, part))
    store.dispose()


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
    parser.add_argument('--decisions', type=int, default=110_000)
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
                pathlib.Path(name) / kind, database, document, args.decisions
            ).items()
        }
    common.show(figures, args.json)


def figures_of(
    folder: pathlib.Path,
    database: str,
    document: dict[str, Any],
    count: int,
) -> dict[str, Any]:
    """Return the figures of each command on one database.

    :param folder: for the configuration; it is made
    :param count: of decisions
    """
    folder.mkdir()
    config = common.write_config(
        folder, database, 'inproc://lists/', topic='lists'
    )
    common.import_inventory(config, document)
    hosts = len(document['hosts'])
    store_decisions(database, count, hosts)
    words = {
        'INSTANCE': instance(count // 2 + 1),
        'HOST': document['hosts'][0]['host'],
    }
    figures = {
        what: measure(config, tuple(words.get(word, word) for word in command))
        for what, command in COMMANDS.items()
    }
    assert figures['a table of all']['lines'] == hosts + 2
    counted = figures['refusals by filter and project']['lines']
    assert counted == 2 + len({n % _PROJECTS for n in range(0, count, 10)})
    return figures


if __name__ == '__main__':
    main()
