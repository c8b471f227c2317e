"""Daemon processes that end with requests under way."""

import signal
import threading
import uuid

import pytest

from tests.support.databases import ready_database
from tests.support.documents import CONTEXT
from tests.support.processes import on_topic
from tests.support.waiting import LIMIT_S

pytestmark = [pytest.mark.broker, pytest.mark.db]


def test_requests_are_answered_when_the_daemon_stops(
    connect, launch, rabbitmq, postgresql, topic
):
    database = ready_database(postgresql[1])
    daemon = launch(database, rabbitmq[1], on_topic(topic))
    daemon.wait_for('Ready:')
    asking = connect(rabbitmq[1], topic)
    asking.ping(CONTEXT)
    answered: list[str] = []
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            zone = {'name': f'{uuid.uuid4().hex}.'}
            answered.append(asking.schedule_zone(CONTEXT, zone)['pool_id'])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=ask) for _ in range(60)]
    for thread in threads:
        thread.start()
    # What it had not taken yet waits on the bus for the next one. Some
    # programs signal a process, and then its group: that counts as one.
    daemon.popen.send_signal(signal.SIGTERM)
    assert daemon.end(signal.SIGTERM) == 0
    daemon.wait_for('Stopped')
    after = launch(database, rabbitmq[1], on_topic(topic))
    after.wait_for('Ready:')
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(answered) == 60
    assert after.end() == 0


def test_requests_are_answered_when_the_daemon_is_killed(
    connect, launch, rabbitmq, postgresql, topic
):
    database = ready_database(postgresql[1])
    first = launch(database, rabbitmq[1], on_topic(topic))
    first.wait_for('Ready:')
    asking = connect(rabbitmq[1], topic, timeout=LIMIT_S)
    asking.ping(CONTEXT)
    answers: dict[str, str] = {}

    def ask(zone: str) -> None:
        found = asking.schedule_zone(CONTEXT, {'name': zone})
        answers[zone] = found['pool_id']

    threads = [
        threading.Thread(target=ask, args=(f'{n}.',)) for n in range(40)
    ]
    for thread in threads:
        thread.start()
    first.popen.kill()
    second = launch(database, rabbitmq[1], on_topic(topic))
    second.wait_for('Ready:')
    for thread in threads:
        thread.join()
    assert len(answers) == 40
