"""Daemon processes whose database works, but has locks that others hold."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_db import exception as db_exception

from scheduler_service.store.connection import Store
from scheduler_service.store.sessions import Timeouts
from tests.support.databases import ready_database
from tests.support.documents import CONTEXT, SMALL
from tests.support.processes import on_topic
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.db]

LOCK = sa.text("UPDATE counters SET value = value WHERE name = 'revision'")


@pytest.mark.parametrize(
    'kind',
    ['postgresql', pytest.param('mariadb', marks=pytest.mark.slow)],
)
def test_requests_wait_while_another_session_has_the_counter_row(
    kind, connect, launch, request, rabbitmq, topic
):
    database = ready_database(request.getfixturevalue(kind)[1])
    extra = on_topic(topic) + '[database]\nlock_timeout = 2\n'
    daemon = launch(database, rabbitmq[1], extra)
    daemon.wait_for('Ready:')
    asking = connect(rabbitmq[1], topic, timeout=LIMIT_S)
    store = Store.connect(database, Timeouts(idle_transaction=0))
    answers: list[Any] = []
    thread = threading.Thread(
        target=lambda: answers.append(
            asking.select_destinations(CONTEXT, {'flavor': SMALL})
        )
    )
    with store.engine.connect() as conn, conn.begin():
        conn.execute(LOCK)
        thread.start()
        wait_until(
            lambda: asking.ping(CONTEXT)['counters'].get('database_timeouts')
        )
        told = wait_until(
            lambda: [
                text
                for text in asking.ping(CONTEXT)['degraded']
                if text.startswith('The database takes too long: ')
            ]
        )
        daemon.wait_for(f'Degraded: {told[0]}')
        assert asking.ping(CONTEXT)['database'] == 'up'
        assert not answers
    thread.join(LIMIT_S)
    assert len(answers) == 1
    daemon.wait_for('Locks in the database are free again')
    store.dispose()
    assert daemon.end() == 0


@pytest.mark.parametrize(
    'kind',
    [
        pytest.param('postgresql', marks=pytest.mark.slow),
        pytest.param('mariadb', marks=pytest.mark.slow),
    ],
)
def test_session_is_ended_when_it_stays_idle_in_a_transaction(kind, make_url):
    store = Store.connect(
        make_url(kind), Timeouts(lock=60, idle_transaction=1.0)
    )
    conn = store.hold()
    transaction = conn.begin()
    conn.execute(LOCK)
    store.write(lambda writer: writer.touched.instances.append('a'))
    with pytest.raises(db_exception.DBError):
        conn.execute(LOCK)
    transaction.rollback()
    conn.close()
    store.dispose()


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['postgresql', 'mariadb'])
def test_other_daemons_answer_when_one_is_stopped_at_work(
    kind, connect, launch, request, rabbitmq, topic
):
    database = ready_database(request.getfixturevalue(kind)[1])
    extra = on_topic(topic)
    daemons = [launch(database, rabbitmq[1], extra) for _ in range(2)]
    for daemon in daemons:
        daemon.wait_for('Ready:')
    asking = connect(rabbitmq[1], topic, timeout=LIMIT_S)
    over = threading.Event()
    # Without a pause until then: one is stopped in the middle of something.
    pause_s = 0.0

    def load() -> None:
        while not over.wait(pause_s):
            asking.schedule_zone(CONTEXT, {'name': f'{os.urandom(8).hex()}.'})

    threads = [threading.Thread(target=load, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    daemons[0].popen.send_signal(signal.SIGSTOP)
    pause_s = 0.1
    # After 10 s the server ends the session of the stopped daemon.
    time.sleep(12)
    store = Store.connect(database)
    store.write(lambda writer: writer.touched.instances.append('a'))
    store.dispose()
    daemons[0].popen.send_signal(signal.SIGCONT)
    over.set()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
