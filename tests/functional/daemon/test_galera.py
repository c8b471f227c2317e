"""Daemons on a Galera cluster, each on a node of its own."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler_service.store.connection import Store
from scheduler_service.store.records import audit
from tests.support import clusters, servers
from tests.support.databases import ready_database
from tests.support.documents import CONTEXT
from tests.support.faults import crowd
from tests.support.processes import Process, on_topic
from tests.support.stores import DEFAULT_RATIOS

pytestmark = [pytest.mark.broker, pytest.mark.db, pytest.mark.slow]

CALLERS = 12
TINY = {'memory_mb': 1}


@contextlib.contextmanager
def daemons_on_nodes(
    launch: Any, bus: str, topic: str
) -> Iterator[tuple[list[tuple[servers.Server, str]], list[Process]]]:
    """Run a cluster, and a daemon on each node."""
    with clusters.galera() as nodes:
        database = ready_database(nodes[0][1])
        name = database.removeprefix(nodes[0][1])
        running = [
            launch(url + name, bus, on_topic(topic)) for _, url in nodes
        ]
        for daemon in running:
            daemon.wait_for('Ready:')
        yield [(one, url + name) for one, url in nodes], running


def ask(clients: list[Any], results: Counter[str], number: int) -> None:
    try:
        clients[number % len(clients)].select_destinations(
            CONTEXT,
            {'flavor': TINY, 'instance_uuids': [str(uuid.uuid4())]},
        )
        results['answered'] += 1
    except Exception as error:
        results[type(error).__name__] += 1


def findings(url: str) -> list[Any]:
    """Return what an audit finds."""
    store = Store.connect(url)
    with store.reading() as conn:
        found = audit.audit(conn, DEFAULT_RATIOS).findings
    store.dispose()
    return list(found)


def test_no_request_is_refused_when_daemons_write_to_different_nodes(
    connect, launch, rabbitmq, topic
):
    with daemons_on_nodes(launch, rabbitmq[1], topic) as (nodes, _):
        clients = [connect(rabbitmq[1], topic, timeout=60) for _ in range(4)]
        results: Counter[str] = Counter()
        crowd(
            CALLERS,
            range(800),
            lambda task, number: ask(clients, results, number),
        )
        assert results == {'answered': 800}
        assert findings(nodes[0][1]) == []
        retries = clients[0].ping(CONTEXT)['counters'].get('database_retries')
        print('retries', retries)


def test_service_goes_on_when_a_node_is_killed(
    connect, launch, rabbitmq, topic
):
    with daemons_on_nodes(launch, rabbitmq[1], topic) as (nodes, _):
        asking = connect(rabbitmq[1], topic, timeout=60)
        results: Counter[str] = Counter()
        ask([asking], results, 0)
        nodes[2][0].kill(signal.SIGKILL)
        time.sleep(5)
        start = time.monotonic()
        over = start + 10
        threads = [
            threading.Thread(
                target=lambda: [
                    ask([asking], results, 0)
                    for _ in iter(lambda: time.monotonic() < over, False)
                ]
            )
            for _ in range(CALLERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(results) == {'answered'}
        assert results['answered'] > 100
        assert findings(nodes[0][1]) == []
