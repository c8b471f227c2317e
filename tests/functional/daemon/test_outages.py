"""Daemon processes whose servers go away and come back."""

from __future__ import annotations

import threading
import time

import pytest

from tests.support import servers
from tests.support.databases import ready_database
from tests.support.documents import (
    CONTEXT,
    SMALL,
)
from tests.support.processes import on_topic
from tests.support.services import connected

pytestmark = [pytest.mark.broker, pytest.mark.db, pytest.mark.slow]

# As the shipped sample has it: queues that survive the broker's restart.
DURABLE = """
[oslo_messaging_rabbit]
amqp_durable_queues = true
rabbit_quorum_queue = true
rabbit_transient_quorum_queue = true
"""


def test_requests_wait_when_the_database_is_away(
    connect, launch, rabbitmq, topic
):
    with servers.postgresql(durable=False) as (server, base):
        database = ready_database(base)
        server.kill()
        daemon = launch(database, rabbitmq[1], on_topic(topic))
        daemon.wait_for('Degraded: database unreachable')
        server.relaunch()
        daemon.wait_for('Ready: 4 hosts')
        asking = connect(rabbitmq[1], topic, timeout=60)
        asking.select_destinations(CONTEXT, {'flavor': SMALL})

        server.kill()
        answers = []
        thread = threading.Thread(
            target=lambda: answers.append(
                asking.select_destinations(CONTEXT, {'flavor': SMALL})
            )
        )
        thread.start()
        thread.join(3)
        assert thread.is_alive()
        server.relaunch()
        thread.join(40)
        assert len(answers) == 1
        assert daemon.count('Degraded: database unreachable') == 2
        # It is said after the answer, and read by a thread of the test's.
        end = time.monotonic() + 10
        while daemon.count('Database reachable again') < 2:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert daemon.count('Database reachable again') == 2
        assert daemon.end() == 0


def test_daemon_reconnects_when_the_broker_comes_back(
    launch, postgresql, topic
):
    with servers.rabbitmq() as (server, bus):
        daemon = launch(
            ready_database(postgresql[1]), bus, on_topic(topic) + DURABLE
        )
        daemon.wait_for('Ready:')
        with connected(bus, topic, durable=True) as before:
            before.ping(CONTEXT)
        server.kill()
        server.relaunch()
        server.wait(lambda: servers.answers(server.port))
        with connected(bus, topic, timeout=60, durable=True) as asking:
            answer = asking.select_destinations(CONTEXT, {'flavor': SMALL})
        assert len(answer['placements']) == 1
        assert daemon.end() == 0
