"""A database that can be read and not written, such as a standby."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support.databases import ready_database
from tests.support.documents import CONTEXT, SMALL
from tests.support.processes import on_topic

END_SESSIONS = (
    'SELECT pg_terminate_backend(pid) FROM pg_stat_activity '
    'WHERE datname = current_database() AND pid <> pg_backend_pid()'
)


def become(url: str, read_only: str) -> None:
    """Have all sessions end, and new ones be read-only or not."""
    engine = sa.create_engine(url, isolation_level='AUTOCOMMIT')
    with engine.connect() as conn:
        conn.exec_driver_sql('SET default_transaction_read_only = off')
        conn.exec_driver_sql(
            f'ALTER DATABASE {engine.url.database} '
            f'SET default_transaction_read_only = {read_only}'
        )
        conn.exec_driver_sql(END_SESSIONS)
    engine.dispose()


@pytest.mark.broker
@pytest.mark.db
def test_requests_wait_until_the_database_can_be_written(
    connect, launch, postgresql, rabbitmq, topic
):
    database = ready_database(postgresql[1])
    daemon = launch(database, rabbitmq[1], on_topic(topic))
    daemon.wait_for('Ready:')
    asking = connect(rabbitmq[1], topic, timeout=60)
    answers: list[Any] = []
    thread = threading.Thread(
        target=lambda: answers.append(
            asking.select_destinations(CONTEXT, {'flavor': SMALL})
        )
    )
    become(database, 'on')
    thread.start()
    try:
        daemon.wait_for('The database is read-only')
        assert not answers
    finally:
        become(database, 'off')
        thread.join(60)
    assert answers[0]['placements'][0]['selected']['host'] == 'compute-4'
