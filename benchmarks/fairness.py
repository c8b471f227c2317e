"""How long one caller waits while others flood the daemon.

``python -m benchmarks.fairness`` starts private servers and a daemon over
10,000 hosts. One caller asks for one instance at a time: alone, beside four
callers of ``schedule_many`` with 20 requests of 1,000 instances each, and
beside eight callers of ``/v1/explain``. The flooders run in processes of
their own. Printed are the times of that one caller, in milliseconds.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import multiprocessing
import pathlib
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import common
from benchmarks.rpc import CONTEXT, Caller
from tests.support import servers

FLOODERS = 4
REQUESTS = 20
INSTANCES = 1000
EXPLAINERS = 8
_SPAWN = multiprocessing.get_context('spawn')


def _repeat(call: Callable[[], None], count: Any, over: Any) -> None:
    """Call again and again until it is over, and count the calls."""
    while not over.is_set():
        call()
        with count.get_lock():
            count.value += 1


def _flood(bus: str, flooders: int, count: Any, over: Any) -> None:
    """Send batches from several callers with reply queues of their own."""
    entry = {'select_destinations': common.request(num_instances=INSTANCES)}

    def send() -> None:
        client = Caller(bus, timeout=600).client
        _repeat(
            lambda: client.schedule_many(CONTEXT, [entry] * REQUESTS),
            count,
            over,
        )

    _in_threads(send, flooders)


def _explain(port: int, callers: int, count: Any, over: Any) -> None:
    """Ask for explanations of requests that no host can satisfy."""
    body = json.dumps(
        {'request': common.request(flavor={'memory_mb': 10**7})}
    ).encode()

    def ask() -> None:
        connection = http.client.HTTPConnection('127.0.0.1', port, timeout=60)

        def call() -> None:
            connection.request('POST', '/v1/explain', body)
            connection.getresponse().read()

        _repeat(call, count, over)

    _in_threads(ask, callers)


def _in_threads(work: Callable[[], None], threads: int) -> None:
    running = [
        threading.Thread(target=work, daemon=True) for _ in range(threads)
    ]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


@contextlib.contextmanager
def beside(work: Callable[..., None], *args: Any) -> Iterator[Any]:
    """Let a process flood the daemon during the block; yield its count."""
    count, over = _SPAWN.Value('i', 0), _SPAWN.Event()
    process = _SPAWN.Process(target=work, args=(*args, count, over))
    process.start()
    try:
        time.sleep(5)
        yield count
    finally:
        over.set()
        # A batch may take longer than anybody wants to wait for it now.
        process.join(1)
        process.terminate()
        process.join()


def times(caller: Caller, seconds: float) -> dict[str, float]:
    """Return how long single requests took, in milliseconds."""
    taken: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        taken.append(common.timed(caller.claimed) * 1000)
        time.sleep(0.01)
    return {
        'calls': len(taken),
        'p50_ms': round(statistics.median(taken), 1),
        'p99_ms': round(statistics.quantiles(taken, n=100)[98], 1),
        'most_ms': round(max(taken), 1),
    }


def measure(bus: str, port: int, seconds: float) -> dict[str, Any]:
    """Return the times of one caller, alone and beside others."""
    caller = Caller(bus)
    times(caller, 3)
    figures: dict[str, Any] = {'alone': times(caller, seconds)}
    with beside(_explain, port, EXPLAINERS) as count:
        before = count.value
        figures['beside_explanations'] = {
            **times(caller, seconds),
            'explanations': count.value - before,
        }
    with beside(_flood, bus, FLOODERS) as count:
        before = count.value
        figures['beside_batches'] = {
            **times(caller, seconds),
            'batches': count.value - before,
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--hosts', type=int, default=10_000)
    parser.add_argument('--seconds', type=float, default=30)
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
            more.write(f'[http]\nbind_port = {port}\n')
        common.import_inventory(config, common.inventory(args.hosts))
        with common.daemon(config):
            figures = measure(bus, port, args.seconds)
    common.show(figures, args.json)


if __name__ == '__main__':
    main()
