"""Daemons on a Galera cluster, each on a node of its own."""

import signal
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler_service import errors
from scheduler_service.store.connection import Store
from scheduler_service.store.records import audit
from tests.rigs.faults import crowd
from tests.support import clusters, servers
from tests.support.databases import ready_database
from tests.support.documents import CONTEXT
from tests.support.processes import Process, on_topic
from tests.support.stores import DEFAULT_RATIOS
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.db, pytest.mark.slow]

CALLERS = 12
REQUESTS = 120
TINY = {'memory_mb': 1}


@pytest.fixture
def nodes(
    launch: Any, rabbitmq: Any, topic: str
) -> Iterator[list[tuple[servers.Server, str]]]:
    """The nodes with the URLs of a database; each has a daemon."""
    with clusters.galera() as cluster:
        database = ready_database(cluster[0][1])
        name = database.removeprefix(cluster[0][1])
        running: list[Process] = [
            launch(url + name, rabbitmq[1], on_topic(topic))
            for _, url in cluster
        ]
        for daemon in running:
            daemon.wait_for('Ready:')
        yield [(server, url + name) for server, url in cluster]


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


def members(url: str) -> int:
    """Return how many nodes a node takes for members; 0: it is not sure."""
    store = Store.connect(url)
    try:
        with store.reading() as conn:
            query = "SHOW STATUS LIKE 'wsrep_cluster_size'"
            return int(conn.exec_driver_sql(query).one()[1])
    except errors.StoreUnavailable:
        # So it says for a moment, when it has lost one.
        return 0
    finally:
        store.dispose()


def test_no_request_is_refused_though_nodes_differ_and_one_is_killed(
    nodes, connect, rabbitmq, topic
):
    clients = [connect(rabbitmq[1], topic, timeout=LIMIT_S) for _ in range(4)]
    results: Counter[str] = Counter()

    def many() -> None:
        crowd(
            CALLERS,
            range(REQUESTS),
            lambda task, number: ask(clients, results, number),
        )

    many()
    assert results == {'answered': REQUESTS}
    assert findings(nodes[0][1]) == []
    nodes[2][0].kill(signal.SIGKILL)
    wait_until(lambda: members(nodes[0][1]) == 2)
    many()
    assert results == {'answered': 2 * REQUESTS}
    assert findings(nodes[0][1]) == []
