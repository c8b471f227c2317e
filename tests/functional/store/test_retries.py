"""Writes that collide are repeated."""

import threading
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler_service.store import schema
from tests.support.stores import import_two_hosts, load_snapshot
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.db


@pytest.mark.parametrize('kind', ['postgresql', 'mariadb'])
def test_write_is_repeated_when_it_meets_a_deadlock(kind, make_store):
    store = make_store(kind)
    snapshot = import_two_hosts(store)
    reasons: list[str] = []
    store.on_retry = reasons.append
    table = schema.hosts
    ids = [int(one) for one in snapshot.hosts.ids]
    meeting = threading.Barrier(2, timeout=LIMIT_S)

    def crosswise(first: int, second: int) -> None:
        met: list[bool] = []

        def work(writer: Any) -> None:
            for turn, host_id in enumerate((first, second)):
                writer.conn.execute(
                    sa.update(table)
                    .where(table.c.id == host_id)
                    .values(num_io_ops=table.c.num_io_ops + 1)
                )
                if turn == 0 and not met:
                    met.append(True)
                    meeting.wait()

        store.write(work)

    threads = [
        threading.Thread(target=crosswise, args=pair)
        for pair in ((ids[0], ids[1]), (ids[1], ids[0]))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The server may end both.
    assert {*reasons} == {'deadlock'}
    assert load_snapshot(store).hosts.number('num_io_ops').tolist() == [2, 2]
