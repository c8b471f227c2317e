"""Daemons on clusters of servers, one server of which dies or hangs."""

import contextlib
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from tests.support import clouds, clusters, servers
from tests.support.databases import ready_database
from tests.support.documents import CONTEXT
from tests.support.processes import on_topic
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.db, pytest.mark.slow]

CALLERS = 8
# Between two calls of a caller; of eight, some are under way at any time.
PAUSE_S = 0.05
PLACED = 50
TINY = {'memory_mb': 1}


def ask_while(
    clients: list, happens: Callable[[], object], seconds: float
) -> tuple[list[str], list[str]]:
    """Call all the time, with something that happens meanwhile.

    :param seconds: to call for after it happened, at least
    :return: instances that were placed, and errors
    """
    placed: list[str] = []
    failed: list[str] = []
    over = threading.Event()

    def ask(number: int) -> None:
        while not over.wait(PAUSE_S):
            instance = str(uuid.uuid4())
            try:
                clients[number % len(clients)].select_destinations(
                    CONTEXT, {'flavor': TINY, 'instance_uuids': [instance]}
                )
            except Exception as error:
                failed.append(repr(error))
            else:
                placed.append(instance)

    def many_placed() -> None:
        count = len(placed)
        wait_until(lambda: failed or len(placed) > count + PLACED)

    threads = [
        threading.Thread(target=ask, args=(number,))
        for number in range(CALLERS)
    ]
    for thread in threads:
        thread.start()
    try:
        many_placed()
        happens()
        time.sleep(seconds)
        many_placed()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    return placed, failed


@pytest.fixture(scope='module')
def brokers() -> Iterator[tuple[list[servers.Server], str, list]]:
    """A cluster of brokers, its URL, and a list of nodes that are gone."""
    with clusters.rabbitmq() as (nodes, bus):
        yield nodes, bus, []


@pytest.fixture
def cluster(brokers) -> tuple[list[servers.Server], str, list]:
    """The same, with all of its nodes."""
    *_, gone = brokers
    while gone:
        clusters.restart(gone[-1])
        gone.pop()
    return brokers


# See clouds.clean.
@pytest.mark.filterwarnings('ignore:unclosed <socket:ResourceWarning')
@pytest.mark.parametrize(
    ('number', 'seconds'),
    # A process that hangs is noticed after two heartbeats at the latest.
    [(signal.SIGKILL, 5), (signal.SIGSTOP, 15)],
)
def test_no_call_is_lost_when_the_leader_of_the_queue_goes(
    cluster, postgresql, number, seconds
):
    nodes, bus, gone = cluster
    with clouds.cloud(postgresql[1], bus, daemons=2, heartbeat_s=6) as cloud:
        cloud.bring(
            {'hosts': [{'host': 'h', 'vcpus': 64, 'memory_mb': 10**6}]}
        )
        leader = clusters.leader_of(nodes, cloud.topic)
        gone.append(leader)
        # A caller that is connected to the node itself depends on its own
        # library, and on how RabbitMQ serves its reply queue, which that node
        # leads: 3.10 at times kept the answers until the node was back. The
        # daemons are what is tested here.
        cloud.bus = clusters.rabbitmq_url(
            [node for node in nodes if node is not leader]
        )
        clients = [cloud.client(100) for _ in range(4)]
        try:
            placed, failed = ask_while(
                clients, lambda: clusters.send(leader, number), seconds
            )
        finally:
            # One that hangs could not be removed.
            with contextlib.suppress(OSError):
                clusters.send(leader, signal.SIGKILL)
        assert failed == []
        assert {*placed} <= cloud.allocated().keys()
        assert cloud.books() == []


def test_no_answered_claim_is_lost_when_the_database_fails_over(
    launch, connect, rabbitmq, topic
):
    with clusters.postgresql_pair() as pair:
        database = ready_database(pair.url)
        name = database.removeprefix(pair.url)
        for _ in range(2):
            daemon = launch(
                database + pair.query, rabbitmq[1], on_topic(topic)
            )
            daemon.wait_for('Ready:')
        clients = [
            connect(rabbitmq[1], topic, timeout=LIMIT_S) for _ in range(4)
        ]

        def fail_over() -> None:
            pair.primary.kill(signal.SIGKILL)
            pair.promote()

        placed, failed = ask_while(clients, fail_over, 8)
        assert failed == []
        store = Store.connect(
            f'postgresql+psycopg://test@127.0.0.1:{pair.standby.port}/{name}'
        )
        with store.reading() as conn:
            found = conn.execute(sa.select(schema.instances.c.uuid)).scalars()
            assert {*placed} <= {*found}
        store.dispose()
