"""100,000 wrong RPC payloads and 20,000 wrong HTTP requests.

The daemon may not crash, hang, or answer without a named error, and its
memory stays flat.
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks import common
from scheduler_service import conf as options
from scheduler_service.cmd import adapters
from scheduler_service.rpc import transport
from tests.support import fuzzing, servers
from tests.support.fuzzing import NAMES

import oslo_messaging  # isort: skip

_THREADS = 4


def rpc(bus: str, count: int) -> dict[str, Any]:
    """Return the outcomes of *count* calls from several threads."""
    conf = adapters.new_config()
    options.parse(conf, [], default_config_files=[], default_config_dirs=[])
    client = oslo_messaging.get_rpc_client(
        transport.for_client(conf, bus),
        oslo_messaging.Target(topic='scheduler'),
    )
    with ThreadPoolExecutor(_THREADS) as pool:
        results = list(
            pool.map(
                lambda seed: fuzzing.rpc(
                    client, count // _THREADS, seed, NAMES
                ),
                range(_THREADS),
            )
        )
    outcomes: Counter[str] = Counter()
    for result in results:
        outcomes.update(result['outcomes'])
    return {
        'outcomes': dict(outcomes),
        'unnamed': [bad for result in results for bad in result['unnamed']][
            :5
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--rpc', type=int, default=100_000)
    parser.add_argument('--http', type=int, default=20_000)
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    with (
        common.database(None) as database,
        common.bus(None) as bus,
        tempfile.TemporaryDirectory() as folder,
    ):
        port = servers.free_port()
        config = common.write_config(pathlib.Path(folder), database, bus)
        with config.open('a') as more:
            more.write(f'[http]\nbind_port = {port}\nrequest_timeout = 2\n')
        common.import_inventory(config, common.inventory(100))
        with common.daemon(config) as running:
            rpc(bus, 4000)
            fuzzing.http_face(port, 1000, 9)
            before = common.memory_mb(running.pid)
            figures = {
                'rpc': rpc(bus, args.rpc),
                'http': fuzzing.http_face(port, args.http, 1),
                'memory_mb_before': round(before),
                'memory_mb_after': round(common.memory_mb(running.pid)),
                'alive': running.poll() is None,
            }
    common.show(figures, args.json)


if __name__ == '__main__':
    main()
