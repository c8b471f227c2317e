"""Import, start to ready, and memory, at several sizes.

``python -m benchmarks.bulk --hosts 10000 100000`` on a private PostgreSQL and
RabbitMQ; every size in a database of its own.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import tempfile
from typing import Any

from benchmarks import common
from tests.conftest import new_database


def measure(hosts: int, base: str, bus: str) -> dict[str, Any]:
    """Return the figures at one size."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        config = common.write_config(
            folder, new_database(base), bus, topic=f'bulk{hosts}'
        )
        document = folder / 'inventory.json'
        document.write_text(json.dumps(common.inventory(hosts)))
        common.manage(config, 'db', 'sync')
        bring = ('inventory', 'import', str(document), '-f', 'json')
        first = common.timed(lambda: common.manage(config, *bring))
        again = common.timed(lambda: common.manage(config, *bring))
        rows = json.loads(common.manage(config, *bring).stdout)
        assert {row['kind']: row['same'] for row in rows}['hosts'] == hosts
        running: list[Any] = []

        def start() -> None:
            daemon = common.daemon(config)
            running.append((daemon, daemon.__enter__()))

        ready = common.timed(start)
        daemon, process = running[0]
        memory = common.memory_mb(process.pid)
        daemon.__exit__(None, None, None)
    return {
        'import_s': round(first, 2),
        'import_again_s': round(again, 2),
        'start_to_ready_s': round(ready, 2),
        'memory_mb': round(memory),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--hosts', type=int, nargs='+', default=[10_000, 100_000]
    )
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    with (
        common.servers.postgresql() as (_, base),
        common.servers.rabbitmq() as (_, bus),
    ):
        figures = {
            str(hosts): measure(hosts, base, bus) for hosts in args.hosts
        }
    common.show(figures, args.json)


if __name__ == '__main__':
    main()
