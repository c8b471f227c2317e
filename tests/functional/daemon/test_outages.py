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
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.db, pytest.mark.slow]

# As the shipped sample has it: queues that survive the broker's restart.
DURABLE = """
[oslo_messaging_rabbit]
amqp_durable_queues = true
rabbit_quorum_queue = true
rabbit_transient_quorum_queue = true
"""
# What is said of a machine that is slow, and of an outage that is long.
NOISE = 'the last batch', 'No batch takes more', 'Still degraded'


def loud(daemon):
    """Return the lines that are warnings or worse."""
    return [
        line
        for line in daemon.lines
        if (' WARNING ' in line or ' ERROR ' in line)
        and not any(text in line for text in NOISE)
    ]


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
        wait_until(lambda: daemon.count('Database reachable again') == 2)
        assert daemon.end() == 0


def test_a_lost_broker_gets_two_lines_and_a_clean_stop_none(
    launch, postgresql, topic
):
    with servers.rabbitmq() as (server, bus):
        daemon = launch(
            ready_database(postgresql[1]), bus, on_topic(topic) + DURABLE
        )
        daemon.wait_for('Ready:')
        with connected(bus, topic, durable=True) as client:
            client.ping(CONTEXT)
        server.kill()
        line = daemon.wait_for('Degraded: broker unreachable')
        # A broker that is told to end says so, one that is killed does not.
        assert f'(127.0.0.1:{server.port}: ' in line
        # Time for some tries, which are not logged.
        time.sleep(3)
        server.relaunch()
        server.wait(lambda: servers.answers(server.port))
        daemon.wait_for('Broker reachable again')
        with connected(bus, topic, timeout=60, durable=True) as client:
            answer = client.select_destinations(CONTEXT, {'flavor': SMALL})
        assert len(answer['placements']) == 1
        assert daemon.end() == 0
        daemon.wait_for('Stopped')
        assert len(loud(daemon)) == 2, loud(daemon)
        assert len(daemon.lines) < 20
