"""Daemons on clusters of servers, one server of which dies or hangs."""

import os
import pathlib
import signal
import threading
import time
import uuid
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from scheduler_service.store import schema
from scheduler_service.store.connection import Store
from tests.support import clouds, clusters, servers
from tests.support.databases import ready_database
from tests.support.documents import CONTEXT
from tests.support.processes import on_topic

pytestmark = [pytest.mark.broker, pytest.mark.db, pytest.mark.slow]

CALLERS = 8
TINY = {'memory_mb': 1}


def ask_while(
    clients: list, happens: Callable[[], object], seconds: float
) -> tuple[list[str], list[str]]:
    """Call for some seconds, with something that happens after the first.

    :return: instances that were placed, and errors
    """
    placed: list[str] = []
    failed: list[str] = []
    over = time.monotonic() + seconds

    def ask(number: int) -> None:
        while time.monotonic() < over:
            instance = str(uuid.uuid4())
            try:
                clients[number % len(clients)].select_destinations(
                    CONTEXT, {'flavor': TINY, 'instance_uuids': [instance]}
                )
            except Exception as error:
                failed.append(repr(error))
            else:
                placed.append(instance)

    threads = [
        threading.Thread(target=ask, args=(number,))
        for number in range(CALLERS)
    ]
    for thread in threads:
        thread.start()
    time.sleep(seconds / 4)
    happens()
    for thread in threads:
        thread.join()
    return placed, failed


def runtime_pid(node: servers.Server) -> int:
    """Return the process of a RabbitMQ node's runtime."""
    name = node._env['RABBITMQ_NODENAME']
    path = pathlib.Path(node._env['RABBITMQ_MNESIA_BASE']) / f'{name}.pid'
    return int(path.read_text())


def leader_of(nodes: list[servers.Server], queue: str) -> servers.Server:
    """Return the node that leads a quorum queue."""
    control = servers.binary('rabbitmq-queues', '/usr/sbin/rabbitmq-queues')
    real = servers.real_program(control)
    told = nodes[0].command(
        real, '-q', 'quorum_status', queue, **nodes[0]._env
    )
    line = next(
        splitline
        for splitline in told.stdout.decode().splitlines()
        if 'leader' in splitline
    )
    return next(
        node for node in nodes if node._env['RABBITMQ_NODENAME'] in line
    )


# See clouds.clean.
@pytest.mark.filterwarnings('ignore:unclosed <socket:ResourceWarning')
@pytest.mark.parametrize(
    ('number', 'seconds'),
    # Only that of a process that hangs takes time to be noticed.
    [(signal.SIGKILL, 12), (signal.SIGSTOP, 24)],
)
def test_no_call_is_lost_when_the_leader_of_the_queue_goes(
    postgresql, number, seconds
):
    with (
        clusters.rabbitmq() as (nodes, bus),
        clouds.cloud(postgresql[1], bus, daemons=2, heartbeat_s=6) as cloud,
    ):
        cloud.bring(
            {'hosts': [{'host': 'h', 'vcpus': 64, 'memory_mb': 10**6}]}
        )
        led_by = leader_of(nodes, cloud.topic)
        leader = runtime_pid(led_by)
        # A caller that is connected to the node itself depends on its own
        # library, and on how RabbitMQ serves its reply queue, which that node
        # leads: 3.10 at times kept the answers until the node was back. The
        # daemons are what is tested here.
        cloud.bus = clusters.rabbitmq_url(
            [node for node in nodes if node is not led_by]
        )
        clients = [cloud.client(100) for _ in range(4)]
        try:
            placed, failed = ask_while(
                clients, lambda: os.kill(leader, number), seconds
            )
        finally:
            if number == signal.SIGSTOP:
                os.kill(leader, signal.SIGCONT)
        assert failed == []
        assert len(placed) > 100
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
        clients = [connect(rabbitmq[1], topic, timeout=60) for _ in range(4)]

        def fail_over() -> None:
            pair.primary.kill(signal.SIGKILL)
            pair.promote()

        placed, failed = ask_while(clients, fail_over, 16)
        assert failed == []
        assert len(placed) > 100
        store = Store.connect(
            f'postgresql+psycopg://test@127.0.0.1:{pair.standby.port}/{name}'
        )
        with store.reading() as conn:
            found = conn.execute(sa.select(schema.instances.c.uuid)).scalars()
            assert {*placed} <= {*found}
        store.dispose()
