"""The faults that daemons have to survive, at full length.

``python -m benchmarks.faults`` runs all scenarios, or those that are named.
Each prints its figures, and fails where a promise was broken.
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks import common
from scheduler_service.rpc.client import SchedulerClient
from tests.rigs import faults, kube_chaos
from tests.support import clouds, control_plane, servers

CONTEXT = faults.CONTEXT
_WARM_UP_S = 75.0


def nearly_full() -> dict[str, Any]:
    """4 daemons, 32 callers, 20,000 requests on 200 nearly full hosts."""
    with (
        servers.rabbitmq() as (_, bus),
        servers.postgresql() as (_, base),
        clouds.cloud(base, bus, daemons=4) as cloud,
    ):
        return faults.nearly_full(cloud, 200, 32, 20_000)


def groups() -> dict[str, Any]:
    """500 groups of 5, placed by 4 daemons at once, apart and together."""
    figures = {}
    for policy in ('anti-affinity', 'affinity'):
        with (
            servers.rabbitmq() as (_, bus),
            servers.postgresql() as (_, base),
            clouds.cloud(base, bus, daemons=4) as cloud,
        ):
            figures[policy] = faults.groups(cloud, policy, 500, 5, 32)
            faults.check(figures[policy])
    return figures


def killed() -> dict[str, Any]:
    """2,000 casts while a daemon is killed with -9 every 2 seconds."""
    with (
        servers.rabbitmq() as (_, bus),
        servers.postgresql() as (_, base),
        clouds.cloud(base, bus, daemons=4) as cloud,
    ):
        return faults.casts(cloud, 2000, faults.killing(cloud, 2.0), 30.0)


def limit() -> dict[str, Any]:
    """30 kills where a message may be delivered 20 times."""
    options = '[oslo_messaging_rabbit]\nrabbit_quorum_delivery_limit = 20\n'
    with (
        servers.rabbitmq() as (_, bus),
        servers.postgresql() as (_, base),
        clouds.cloud(base, bus, 2, options) as cloud,
    ):
        return faults.casts(cloud, 600, faults.killing(cloud, 0.7), 45.0)


def broker() -> dict[str, Any]:
    """2,000 casts while RabbitMQ restarts 3 times."""
    with (
        servers.rabbitmq() as (server, bus),
        servers.postgresql() as (_, base),
        clouds.cloud(base, bus, daemons=4) as cloud,
    ):
        again = faults.restarting(server, 3)
        return {
            **faults.casts(cloud, 2000, again, 30.0),
            **recovery(cloud, server),
        }


def database() -> dict[str, Any]:
    """2,000 casts while PostgreSQL restarts 3 times."""
    with (
        servers.rabbitmq() as (_, bus),
        servers.postgresql() as (server, base),
        clouds.cloud(base, bus, daemons=4) as cloud,
    ):
        again = faults.restarting(server, 3)
        return {
            **faults.casts(cloud, 2000, again, 30.0),
            **recovery(cloud, server),
        }


def pods() -> dict[str, Any]:
    """50 pods a second bound while PostgreSQL is away for 30 seconds."""
    with (
        tempfile.TemporaryDirectory() as folder,
        control_plane.cluster(pathlib.Path(folder)) as cluster,
        servers.postgresql() as (server, base),
        kube_chaos.cloud(base, 'inproc://', cluster, devices=200) as cloud,
    ):
        return kube_chaos.outage(cloud, server, 50, 10.0, 30.0)


def disk() -> dict[str, Any]:
    """The broker runs out of disk under load."""
    with (
        servers.rabbitmq() as (server, bus),
        servers.postgresql() as (_, base),
        clouds.cloud(base, bus, daemons=1) as cloud,
    ):
        return faults.full_disk(cloud, server, 500)


def recovery(cloud: clouds.Cloud, server: servers.Server) -> dict[str, Any]:
    """Return how long after a server's return the rate is back."""
    clients = [cloud.client(60) for _ in range(4)]
    done: list[float] = []
    over = threading.Event()

    def ask(task: int, number: int) -> None:
        client: SchedulerClient = clients[number % 4]
        while not over.is_set():
            try:
                client.select_destinations(
                    CONTEXT, {'flavor': {'memory_mb': 1}}, claim=False
                )
                done.append(time.monotonic())
            except Exception:
                time.sleep(0.05)

    crowd = threading.Thread(
        target=faults.crowd, args=(8, list(range(8)), ask)
    )
    start = time.monotonic()
    crowd.start()
    time.sleep(8)
    before = sum(at > start + 3 for at in done) / (
        time.monotonic() - start - 3
    )
    with faults.restarting(server, 1):
        pass
    back = time.monotonic()
    time.sleep(30)
    over.set()
    crowd.join()
    for second in range(29):
        window = sum(back + second <= at < back + second + 1 for at in done)
        if window >= 0.8 * before:
            return {
                'rate_before': round(before),
                'seconds_to_full': second + 1,
            }
    return {'rate_before': round(before), 'seconds_to_full': None}


def soak() -> dict[str, Any]:
    """100,000 requests; memory before them and at the end.

    Requests come for more than a minute before them: what is kept for a minute
    has reached its size then.
    """
    with (
        servers.rabbitmq() as (_, bus),
        servers.postgresql() as (_, base),
        clouds.cloud(base, bus, daemons=1) as cloud,
    ):
        cloud.bring(common.inventory(1000))
        client = cloud.client(120)
        pid = cloud.running[0].pid
        until = time.monotonic() + _WARM_UP_S
        while time.monotonic() < until:
            _place_and_release(client)
        memory = {0: round(common.memory_mb(pid), 1)}
        for sent in range(1, 101):
            _place_and_release(client)
            if sent % 25 == 0:
                memory[sent * 1000] = round(common.memory_mb(pid), 1)
        first, last = memory[0], memory[100_000]
        return {
            'memory_mb': memory,
            'grown_percent': round((last / first - 1) * 100, 1),
            'books': cloud.books(),
        }


def _place_and_release(client: SchedulerClient) -> None:
    """Place 1,000 instances with one message; release them with another."""
    many = [
        {'select_destinations': {'flavor': {'memory_mb': 1 + n % 50}}}
        for n in range(1000)
    ]
    uuids = [
        one['result']['placements'][0]['instance_uuid']
        for one in client.schedule_many(CONTEXT, many)
        if 'result' in one
    ]
    client.release(CONTEXT, uuids)


_ALL = (
    nearly_full, groups, killed, limit, broker, database, pods, disk, soak,
)  # fmt: skip
SCENARIOS: dict[str, Callable[[], dict[str, Any]]] = {
    one.__name__: one for one in _ALL
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('scenario', nargs='*', choices=[*SCENARIOS, []])
    parser.add_argument('--json', action='store_true')
    args = parser.parse_args()
    for name in args.scenario or SCENARIOS:
        figures = SCENARIOS[name]()
        common.show({name: figures}, args.json)
        faults.check(figures)


if __name__ == '__main__':
    main()
