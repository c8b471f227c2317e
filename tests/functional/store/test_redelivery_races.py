"""A message that two daemons count at the same time is processed by both."""

import threading

import pytest
import sqlalchemy as sa

from scheduler_service.engine.health import Health
from scheduler_service.store import schema
from scheduler_service.store.ports.quarantine import Quarantine
from tests.support.databases import listens
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.db


@pytest.mark.parametrize('database', ['postgresql', 'mariadb'])
def test_a_first_count_of_another_daemon_is_added_to(make_store, database):
    store = make_store(database)
    mine, theirs = (Quarantine(store, 9, Health()) for _ in range(2))
    thread = threading.get_ident()
    left = [theirs]

    @listens(store, 'before_cursor_execute')
    def count_meanwhile(conn, cursor, statement, *more):
        """Let the other daemon be faster, once the row was looked for."""
        adds = 'INTO quarantine' in statement
        if adds and left and threading.get_ident() == thread:
            other = threading.Thread(
                target=left.pop().begin, args=('m', {'method': 'x'}, {})
            )
            other.start()
            other.join(LIMIT_S)

    mine.begin('m', {'method': 'x'}, {})
    assert left == []
    with store.reading() as conn:
        counts = conn.execute(sa.select(schema.quarantine.c.deliveries))
        assert list(counts.scalars()) == [2]
