"""Import, start to ready, and memory, at several sizes.

``python -m benchmarks.bulk --hosts 10000 100000`` on a private PostgreSQL and
RabbitMQ; every size in a database of its own.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import tempfile
import time
from typing import Any

from benchmarks import common
from tests.support import servers


def measure(hosts: int, server_url: str, bus: str) -> dict[str, Any]:
    """Return the figures at one size."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        config = common.write_config(
            folder,
            common.create_database(server_url),
            bus,
            topic=f'bulk{hosts}',
        )
        document = folder / 'inventory.json'
        document.write_text(json.dumps(common.inventory(hosts)))
        common.manage(config, 'db', 'sync')
        command = ('inventory', 'import', str(document), '-f', 'json')
        first = common.timed(lambda: common.manage(config, *command))
        again = common.timed(lambda: common.manage(config, *command))
        rows = json.loads(common.manage(config, *command).stdout)
        assert {row['kind']: row['same'] for row in rows}['hosts'] == hosts
        start = time.perf_counter()
        with common.daemon(config) as process:
            ready = time.perf_counter() - start
            memory = common.memory_mb(process.pid)
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
        servers.postgresql() as (_, server_url),
        servers.rabbitmq() as (_, bus),
    ):
        figures = {
            str(hosts): measure(hosts, server_url, bus) for hosts in args.hosts
        }
    common.show(figures, args.json)


if __name__ == '__main__':
    main()
