"""What ``benchmarks.mix --latency-ms`` measures: a database far away.

Callers have a request of the mix claimed, and then release what they got, all
at once. One daemon and two on the same topic and database are measured in
turns, so that their rates may be compared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import threading
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import slow_line
from benchmarks.measured import DaemonSpec, MeasuredDaemon, running

DAEMONS = (1, 2)


def measure(
    specs: Sequence[DaemonSpec],
    bus: str,
    requests: Sequence[Any],
    milliseconds: float,
    callers: int,
    seconds: float,
) -> dict[str, Any]:
    """Return the figures of each daemon, alone and as one of two.

    :param specs: of this commit, and of an earlier one
    """
    figures: dict[str, Any] = {}
    for spec in specs:
        of_spec = figures.setdefault(spec.name, {})
        for daemons in DAEMONS:
            with contextlib.ExitStack() as stack:
                url = stack.enter_context(
                    slow_line.through(spec.database, milliseconds)
                )
                slow = dataclasses.replace(spec, database=url)
                daemon = stack.enter_context(running(slow, bus, requests))
                for _ in range(daemons - 1):
                    stack.enter_context(slow.started(bus))
                of_spec[f'{daemons} daemons'] = _rate(daemon, callers, seconds)
        one, two = (of_spec[f'{n} daemons']['decisions_a_second']
                    for n in DAEMONS)  # fmt: skip
        of_spec['two to one'] = round(two / one, 2)
    return figures


def _rate(
    daemon: MeasuredDaemon, callers: int, seconds: float
) -> dict[str, Any]:
    """Have callers claim and release for a while.

    :return: claims a second, and the times of their calls in milliseconds
    """
    times: list[float] = []
    faults: list[str] = []
    end = time.monotonic() + seconds

    def work() -> None:
        while time.monotonic() < end:
            start = time.perf_counter()
            try:
                uuids = daemon.claimed_once()
                times.append(time.perf_counter() - start)
                if uuids:
                    daemon.release(uuids)
            except Exception as fault:
                faults.append(type(fault).__name__)

    threads = [threading.Thread(target=work) for _ in range(callers)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - start
    ordered = sorted(times)
    return {
        'decisions_a_second': round(len(times) / took, 1),
        'p50_ms': round(statistics.median(ordered) * 1000),
        'p99_ms': round(ordered[int(len(ordered) * 0.99)] * 1000),
        'failed': len(faults),
    }
